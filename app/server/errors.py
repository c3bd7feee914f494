"""Why serving cannot begin."""


class ServeError(Exception):
    """Serving cannot begin; the message says why."""
