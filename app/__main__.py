"""python -m app: the same as the command `foreman`."""

from app.cli import main

if __name__ == "__main__":
    main()
