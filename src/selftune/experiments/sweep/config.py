"""The configuration of `selftune sweep`: that of `selftune run`, with a table of the settings that vary."""

import copy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import jax
from pydantic import BaseModel

import selftune as st

from ...foundation import arguments
from ...foundation.errors import ArgumentError
from ...sweeps.design import Design, Setting, grid
from .. import user
from ..user.config import ConfigError, Loaded, RangePart

_PLACES = {
    "tuner": "controller",
    "estimator": "controller",
    "system.arguments": "controller",
    "scenario": "scenario",
    "run.theta": "theta",
    "run.a_hat": "a_hat",
}
"""The keys that may vary, and the argument of `selftune.sweep` that each belongs to."""


class SweepConfig:
    """The sweep of a configuration, as arguments of `selftune.sweep`."""

    def __init__(self, path: Path, *, modules: Sequence[str] = ()):
        self.loaded = loaded = Loaded(path, modules=modules)
        if loaded.config.sweep is None:
            raise ConfigError(f"{path}: sweep: this table is missing; it names the settings that vary")
        self.part = loaded.config.sweep
        with jax.enable_x64(True):
            user.check(loaded)  # the base configuration; each point changes some of its values
        self.design = self._design()

    def arguments(self) -> dict[str, Any]:
        loaded, run = self.loaded, self.loaded.config.run
        makers = {name: self._maker(name) for name in ("controller", "scenario", "theta", "a_hat")}
        return {
            "make_controller": makers["controller"],
            "make_scenario": makers["scenario"],
            "grid": self.design,
            "seeds": run.seed_list,
            "theta": makers["theta"],
            "a_hat": makers["a_hat"],
            "guard": loaded.guard,
            "infer": loaded.loop is not None,
            "engine": self.part.engine,
            "lanes": self.part.lanes,
            # The default is a long list for a single run: too much data for thousands of runs.
            "record": run.record if "record" in run.model_fields_set else (),
            "stride": run.stride,
        }

    def _maker(self, kind: Literal["controller", "scenario", "theta", "a_hat"]) -> "_Maker":
        names = {name for name in self.design.names if kind in (_kind(name), _also(name))}
        if self.loaded.loop is not None:  # a loop has its own start values and scenario
            names |= {name for name in self.design.names if name.startswith("system.arguments")}
        names |= {"key"} if kind == "scenario" else set()
        assert self.loaded.make_system is not None
        return _Maker(str(self.loaded.path), self.loaded.text, self.loaded.make_system, kind, frozenset(names))

    def _design(self) -> Design:
        part, over = self.part, {}
        for name, values in part.over.items():
            if _kind(name) is None:
                raise self.loaded.refuse("sweep.over", f"expected keys of {', '.join(_PLACES)}, got {name!r}")
            ranged = isinstance(values, RangePart)
            over[name] = self._range(name, values) if ranged else values
        if part.design == "grid":
            if part.points is not None:
                raise self.loaded.refuse("sweep.points", "expected none, because the lists of a grid decide the number")
            return self._refusing(lambda: grid(over))
        if part.points is None:
            raise self.loaded.refuse("sweep", f"points is missing: the {part.design} design needs a number of points")
        points: int = part.points
        draw = st.random_design if part.design == "random" else st.latin_hypercube
        return self._refusing(lambda: draw(over, points, seed=part.seed))

    def _range(self, name: str, part: RangePart) -> st.Range:
        try:
            return st.Range(part.low, part.high, part.log)
        except ValueError as error:
            raise self.loaded.refuse(f"sweep.over.{name}", str(error)) from None

    def _refusing(self, make: Any) -> Design:
        try:
            return make()
        except ArgumentError as error:
            name = f".{error.argument}" if error.argument in self.part.over else ""
            raise self.loaded.refuse(f"sweep.over{name}", error.mistake) from None

    def pack_modules(self) -> None:
        """Send the user's own modules to the workers, which do not have them."""
        import cloudpickle

        names = {Path(name).with_suffix("").as_posix().replace("/", ".") for name in self.loaded.sources}
        for name in names | {getattr(self.loaded.make_system, "__module__", "")}:
            if (module := sys.modules.get(name)) is not None and not name.startswith("selftune"):
                cloudpickle.register_pickle_by_value(module)


def _kind(name: str) -> str | None:
    """The argument that a key belongs to, or None if the key may not vary."""
    return next((kind for place, kind in _PLACES.items() if name == place or name.startswith(f"{place}.")), None)


def _also(name: str) -> str | None:
    """The scenario too depends on â₀, because a* has as many components."""
    return "scenario" if name == "run.a_hat" else None


@dataclass(frozen=True)
class _Maker:
    """A function of settings. It holds only text and plain functions, so that it can be sent to a worker."""

    path: str
    text: str
    make: Any
    kind: str
    takes: frozenset[str]

    @cached_property
    def _base(self) -> Loaded:
        with jax.ensure_compile_time_eval():  # the cached value outlives the trace that first needs it
            return Loaded(Path(self.path), text=self.text, make=self.make)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_base"}

    def __call__(self, *, key: Any = None, **setting: Any) -> Any:
        loaded = self._loaded(setting)
        match self.kind:
            case "controller":
                return loaded.controller
            case "scenario":
                return loaded.scenario(key)
            case _:
                return loaded.start[self.kind]

    def _loaded(self, setting: Setting) -> Loaded:
        """The configuration with the values of `setting`. All values are checked, except those that are traced."""
        base = self._base
        traced = {name: value for name, value in setting.items() if not arguments.is_known(value)}
        fixed = {name: value for name, value in setting.items() if name not in traced}
        loaded = base
        if fixed:
            raw = base.raw
            for name in sorted(fixed, key=lambda name: name.count(".")):  # a table before the keys in it
                raw = _with(raw, name.split("."), fixed[name])
            with jax.ensure_compile_time_eval():  # a policy of a loop needs the values of its gains
                loaded = base.changed(raw)
        for name, value in traced.items():
            loaded = _traced(loaded, name, value)
        return loaded


def _traced(loaded: Loaded, name: str, value: Any) -> Loaded:
    """The configuration with a traced number at `name`, and with the object that contains it made again."""
    other = copy.copy(loaded)
    other.config = _with(loaded.config, name.split("."), value)
    table, *rest = name.split(".")
    if table in ("tuner", "estimator"):
        setattr(other, table, other.make(table, getattr(other.config, table)))
    elif table == "scenario" and rest[0] in loaded.processes:
        made = other.make(f"scenario.{rest[0]}", getattr(other.config.scenario, rest[0]))
        other.processes = {**loaded.processes, rest[0]: made}
    elif table == "system":
        other.remake_system()
    return other


def _with(part: Any, where: list[str], value: Any) -> Any:
    """A part with the value at the path `where` replaced."""
    head, *rest = where
    if isinstance(part, BaseModel):
        inner = _with(getattr(part, head), rest, value) if rest else value
        return part.model_copy(update={head: inner})
    if not isinstance(part, dict):
        raise ConfigError(f"sweep.over: expected a key of a table, got {head!r} in {part!r}")
    return {**part, head: _with(part.get(head, {}), rest, value) if rest else value}
