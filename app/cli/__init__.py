"""The `foreman` command. Everything but serve, work and migrate speaks to a server through foreman_client."""

import sys
import warnings


def main() -> None:
    # What the client warns of is for whoever typed the command: a sentence, not a line of its source.
    warnings.formatwarning = lambda message, *_, **__: f"foreman: {message}\n"
    for stream in (sys.stdout, sys.stderr):
        # A terminal that has no ✓ gets a question mark, and not a traceback.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        from app.cli.root import arguments_of, build  # importing this package stays free of cost

        build(arguments_of(sys.argv[1:]))()
    except KeyboardInterrupt:
        # Before there was anything to interrupt.
        sys.exit(130)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "app":
            raise
        sys.exit(
            f"foreman: the Python package {error.name!r} is missing: Foreman is not installed as a whole.\n"
            # By their files: on the public index the name `foreman` is somebody else's.
            "In a checkout `make setup` adds it; with the wheels of `make build` it is\n"
            "    pip install foreman-*.whl foreman_client-*.whl"
        )
