"""`python -m selftune`, and the command `selftune`."""

import sys


def main() -> None:
    try:
        from .cli import app
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "selftune":
            raise
        sys.exit(f"selftune: the command needs {error.name}; install it with: pip install 'selftune[experiments]'")
    app()


if __name__ == "__main__":
    main()
