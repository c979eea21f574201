"""Import of the parts of the package that need an extra; if the extra is missing, the error says what to install."""

from importlib import import_module
from types import ModuleType

_PACKAGE = __name__.partition(".")[0]


def load(module: str, *, asked_for: str, extra: str = "experiments") -> ModuleType:
    """Return the module `selftune.<module>`; if a package of the extra is missing, the error says how to install it."""
    try:
        return import_module(f"{_PACKAGE}.{module}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == _PACKAGE:
            raise
        message = f"{asked_for} needs {error.name}; install it with: pip install 'selftune[{extra}]'"
        raise ModuleNotFoundError(message, name=error.name) from None
