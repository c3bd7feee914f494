"""One script for each peer, run by the Python of that peer's own venv, and a list of its exact versions."""
