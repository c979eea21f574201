"""Parts of the package that need an extra: imported when they are first asked for, or refused with what to install."""

from importlib import import_module
from types import ModuleType

_PACKAGE = __name__.partition(".")[0]


def load(module: str, *, asked_for: str, extra: str = "experiments") -> ModuleType:
    """The module `selftune.<module>`; where a package of the extra is missing, an error that says how to install it."""
    try:
        return import_module(f"{_PACKAGE}.{module}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == _PACKAGE:
            raise
        message = f"{asked_for} needs {error.name}; install it with: pip install 'selftune[{extra}]'"
        raise ModuleNotFoundError(message, name=error.name) from None
