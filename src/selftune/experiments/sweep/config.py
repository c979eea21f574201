"""`selftune sweep`'s configuration: that of `selftune run`, and a table of what varies in it."""

import copy
import sys
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
from pydantic import BaseModel

import selftune as st

from ...foundation import arguments
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
"""What may vary, and what is made of it."""


class SweepConfig:
    """A configuration's sweep, as arguments of `selftune.sweep`."""

    def __init__(self, path: Path):
        self.loaded = loaded = Loaded(path)
        if loaded.config.sweep is None:
            raise ConfigError(f"{path}: sweep: this table is missing; it says what varies")
        self.part = loaded.config.sweep
        with jax.enable_x64(True):
            user.check(loaded)  # the point that all others are changes of
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
            "engine": self.part.engine,
            "lanes": self.part.lanes,
            # A long list by default for one run, and too much for thousands.
            "record": run.record if "record" in run.model_fields_set else (),
            "stride": run.stride,
        }

    def _maker(self, kind: Literal["controller", "scenario", "theta", "a_hat"]) -> "_Maker":
        names = {name for name in self.design.names if kind in (_kind(name), _also(name))}
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
                raise self.loaded.refuse("sweep.points", "a grid has as many as its lists give")
            return self._refusing(lambda: grid(over))
        if part.points is None:
            raise self.loaded.refuse("sweep", f"points is missing: how many the {part.design} design draws")
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
        except ValueError as error:
            raise self.loaded.refuse("sweep.over", str(error).removeprefix("grid: ")) from None

    def pack_modules(self) -> None:
        """Let the user's own modules travel to workers, which have none of them."""
        import cloudpickle

        names = {Path(name).with_suffix("").as_posix().replace("/", ".") for name in self.loaded.sources}
        for name in names | {getattr(self.loaded.make_system, "__module__", "")}:
            if (module := sys.modules.get(name)) is not None and not name.startswith("selftune"):
                cloudpickle.register_pickle_by_value(module)


def _kind(name: str) -> str | None:
    """What is made of a key, by the longest place that it is in."""
    return next((kind for place, kind in _PLACES.items() if name == place or name.startswith(f"{place}.")), None)


def _also(name: str) -> str | None:
    """â₀ has as many numbers as a*, and so the scenario depends on it."""
    return "scenario" if name == "run.a_hat" else None


@dataclass(frozen=True)
class _Maker:
    """A function of settings: text and plain functions alone, so that it travels."""

    path: str
    text: str
    make: Any
    kind: str
    takes: frozenset[str]

    @cached_property
    def _base(self) -> Loaded:
        with jax.ensure_compile_time_eval():  # it outlives the trace that asks for it first
            return Loaded(Path(self.path), text=self.text, make=self.make)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_base"}

    def __call__(self, *, key: Any = None, **setting: Any) -> Any:
        loaded = self._loaded(setting)
        config = loaded.config
        match self.kind:
            case "controller":
                return st.Controller(loaded.system, loaded.tuner, loaded.estimator)
            case "scenario":
                widths = user.widths_of(loaded, user.sizes_of(loaded))
                return user.draw(config.scenario.x0, config.scenario.steps, loaded.processes, widths, key)
            case _:
                return jnp.asarray(getattr(config.run, self.kind), float)

    def _loaded(self, setting: Setting) -> Loaded:
        """The configuration with these values in place: checked, but for those that are being traced."""
        base = self._base
        traced = {name: value for name, value in setting.items() if not arguments.is_known(value)}
        fixed = {name: value for name, value in setting.items() if name not in traced}
        loaded = base
        if fixed:
            raw = tomllib.loads(self.text)
            for name in sorted(fixed, key=lambda name: name.count(".")):  # a table before what is in it
                raw = _with(raw, name.split("."), fixed[name])
            loaded = base.changed(raw)
        for name, value in traced.items():
            loaded = _traced(loaded, name, value)
        return loaded


def _traced(loaded: Loaded, name: str, value: Any) -> Loaded:
    """With a number in place that has no value yet, and what it is part of made anew."""
    other = copy.copy(loaded)
    other.config = _with(loaded.config, name.split("."), value)
    table, *rest = name.split(".")
    if table in ("tuner", "estimator"):
        setattr(other, table, other.make(table, getattr(other.config, table)))
    elif table == "scenario" and rest[0] in loaded.processes:
        made = other.make(f"scenario.{rest[0]}", getattr(other.config.scenario, rest[0]))
        other.processes = {**loaded.processes, rest[0]: made}
    elif table == "system":
        assert other.make_system is not None
        other.system = other.make_system(**other.config.system.arguments)
    return other


def _with(part: Any, where: list[str], value: Any) -> Any:
    """A part with one value replaced, which may be inside another."""
    head, *rest = where
    if isinstance(part, BaseModel):
        inner = _with(getattr(part, head), rest, value) if rest else value
        return part.model_copy(update={head: inner})
    if not isinstance(part, dict):
        raise ConfigError(f"sweep.over: expected a key of a table, got {head!r} in {part!r}")
    return {**part, head: _with(part.get(head, {}), rest, value) if rest else value}
