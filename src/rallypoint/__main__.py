"""The entry point of `python -m rallypoint`, which is the command `rallypoint`."""

from rallypoint.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
