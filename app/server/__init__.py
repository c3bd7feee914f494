"""`foreman serve`: the database, the migrations, the processes, the signals, and HTTP on the wire.

One process serves by itself. With several, the parent owns the embedded PostgreSQL and the listening
socket, and keeps the serving processes alive; it serves nothing itself.
"""


class ServeError(Exception):
    """Serving cannot begin; the message says why."""
