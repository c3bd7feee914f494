"""How each kind of job is run: an executor turns a claimed job into an Outcome. It knows no queues."""
