"""`selftune export`: write a controller of the user's module as C. Initial values come from options or the module."""

import importlib
import importlib.util
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.table import Table

import selftune as st

from ..export.c_folder import MANIFEST
from ..export.readme import number
from ..foundation import suggestions
from ..foundation.errors import InputError, OverwriteError
from .screen import new_table


def export(target: str, folder: Path, given: dict[str, str | None], **options: Any) -> dict[str, Any]:
    """Write the C files and return the manifest of the folder."""
    place, colon, name = target.rpartition(":")
    if not (colon and place and name.isidentifier()):
        raise InputError(f"{target}: expected MODULE:CONTROLLER, such as cart/cart.py:controller")
    values: dict[str, Any] = {key: _read(key, text) for key, text in given.items() if text is not None}
    with _importable(place) as load:
        module = _blaming(target, "cannot be imported", load)
        controller = _find(target, module, name)
        for key in given.keys() - values.keys():
            if hasattr(module, key):
                values[key] = getattr(module, key)
            elif key != "t":
                option = key.replace("_", "-")
                raise InputError(f"{target}: {key} is missing: give --{option}, or define {key} in {place}")
        if hasattr(module, "guard"):
            values["guard"] = module.guard
        try:
            _blaming(target, "cannot be exported", lambda: st.export_c(controller, folder, **values, **options))
        except OverwriteError as error:
            raise OverwriteError(error.problem, permission="--overwrite") from None
    return json.loads((folder / MANIFEST).read_bytes())


def table(about: dict[str, Any]) -> Table:
    costs = about["costs"]
    functions = costs["functions"]
    rows = new_table(
        f"cost of one call, {costs['dtype']}", "", *(f"{about['name']}_{function}" for function in functions)
    )
    for kind in functions["act"]:
        rows.add_row(kind, *(number(counts[kind]) for counts in functions.values()))
    return rows


def sizes(about: dict[str, Any]) -> str:
    costs = about["costs"]
    measured = "" if costs["flash"] is None else f", flash {costs['flash']:,} bytes; compiled by {costs['compiler']}"
    return f"RAM {costs['state']:,} bytes{measured}"


def _read(name: str, text: str) -> Any:
    """Parse JSON or comma-separated numbers. A single number becomes a vector, except for t."""
    for form in (text, f"[{text}]"):
        try:
            value = json.loads(form)
        except ValueError:
            continue
        return [value] if name != "t" and isinstance(value, (int, float)) else value
    raise InputError(f"--{name.replace('_', '-')}: expected numbers, such as 0,0, or JSON, got {text!r}")


@contextmanager
def _importable(place: str) -> Iterator[Callable[[], ModuleType]]:
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


def _find(target: str, module: ModuleType, name: str) -> st.Controller:
    controller = getattr(module, name, None)
    if controller is None:
        names = [key for key, value in vars(module).items() if isinstance(value, st.Controller) or callable(value)]
        raise InputError(f"{target}: there is no {name!r}{suggestions.nearest(name, names)}")
    if not isinstance(controller, st.Controller) and callable(controller):
        controller = _blaming(target, "failed", controller)
    if not isinstance(controller, st.Controller):
        raise InputError(
            f"{target}: expected a selftune.Controller or a function that makes one, got {type(controller).__name__}"
        )
    return controller


def _blaming(target: str, what: str, call: Callable[[], Any]) -> Any:
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
