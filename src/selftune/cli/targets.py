"""Objects of a user's module, which commands take as `MODULE:NAME`."""

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from ..foundation import suggestions
from ..foundation.errors import InputError


def split(target: str, kind: str, example: str) -> tuple[str, str]:
    """Return the module and the name of `MODULE:NAME`; `kind` is the word for the object in the error."""
    place, colon, name = target.rpartition(":")
    if not (colon and place and name.isidentifier()):
        raise InputError(f"{target}: expected MODULE:{kind}, such as {example}")
    return place, name


@contextmanager
def importable(place: str) -> Iterator[Callable[[], ModuleType]]:
    """Yield a function that imports a dotted module or a .py file; its folder is on `sys.path` meanwhile."""
    path = Path(place)
    is_file = path.suffix == ".py"
    if is_file and not path.is_file():
        raise InputError(f"{place}: no such file")
    beside = str(path.resolve().parent if is_file else Path.cwd())
    before = sys.modules.get(path.stem)

    def load() -> ModuleType:
        if not is_file:
            return importlib.import_module(place)
        # Load by path: another module of the same name may have been imported already.
        spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    sys.path.insert(0, beside)
    try:
        yield load
    finally:
        sys.path.remove(beside)
        if is_file:
            sys.modules.pop(path.stem, None)
            sys.modules.update({} if before is None else {path.stem: before})


def find(target: str, module: ModuleType, name: str, kind: Any, expected: str) -> Any:
    """Return the object of a module if it has this kind, or the result of the function with this name."""
    value = getattr(module, name, None)
    if value is None:
        names = [key for key, value in vars(module).items() if isinstance(value, kind) or callable(value)]
        raise InputError(f"{target}: there is no {name!r}{suggestions.nearest(name, names)}")
    if (isinstance(value, type) or not isinstance(value, kind)) and callable(value):
        value = blaming(target, "failed", value)
    if not isinstance(value, kind):
        raise InputError(f"{target}: expected {expected} or a function that makes one, got {type(value).__name__}")
    return value


def blaming(target: str, what: str, call: Callable[[], Any]) -> Any:
    """The result of `call`. An exception becomes an `InputError` that names the last line of the user's own file."""
    try:
        return call()
    except (InputError, OSError):
        raise
    except Exception as error:
        own = Path(target.rpartition(":")[0])
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).name == own.name]
        line = f"{own.name}:{frames[-1].lineno}: " if frames else ""
        kind = "" if isinstance(error, (ValueError, NotImplementedError)) else f"{type(error).__name__}: "
        raise InputError(f"{target}: {what} ({line}{kind}{error})") from error


class Modules:
    """The user's modules. Each is imported once, because an import may open a connection to the plant. Their folders
    stay importable until the command ends."""

    def __init__(self, stack: ExitStack):
        self._stack, self._loaded = stack, {}

    def find(self, target: str, kind: str, example: str, type_: Any, expected: str) -> Any:
        place, name = split(target, kind, example)
        if place not in self._loaded:
            load = self._stack.enter_context(importable(place))
            self._loaded[place] = blaming(target, "cannot be imported", load)
        return find(target, self._loaded[place], name, type_, expected)
