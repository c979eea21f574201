"""`python -m selftune`, and the command `selftune`."""

import sys

from .foundation import extras


def main() -> None:
    try:
        app = extras.load("cli.app", asked_for="the command").app
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "selftune":
            raise
        sys.exit(f"selftune: {error}")
    app()


if __name__ == "__main__":
    main()
