"""What a job is: states, transitions, request shapes, retry arithmetic. Pure; no I/O lives here."""
