"""The `foreman` command. Everything but serve, work and migrate speaks to a server through foreman_client."""

import sys


def main() -> None:
    from app.cli.root import build  # importing this package stays free of cost

    build(sys.argv[1:])()
