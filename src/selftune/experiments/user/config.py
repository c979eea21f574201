"""The configuration of `selftune run`: TOML, validated by pydantic. Errors name the file and the line."""

import copy
import functools
import importlib
import inspect
import math
import re
import sys
import tomllib
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, Union, get_args

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator
from pydantic_core import PydanticCustomError

import selftune as st
from selftune import references

from ...control.run_fields import FIELDS
from ...foundation import suggestions
from ...foundation.errors import ArgumentError, InputError
from ...loop.references import AbstractReference, as_reference


class ConfigError(InputError):
    """An error in a configuration, with its place."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _is_a_number(value: float) -> float:
    if math.isnan(value):
        raise PydanticCustomError("nan", "Expected a number")
    return value


Number = Annotated[float | int, AfterValidator(_is_a_number)]
Numbers = Number | list[Number] | list[list[Number]]


def _part(kind: type, tag: str, **types: Any) -> type[_Part]:
    """The model of a TOML table for one `kind`. Its keys are the arguments of the constructor."""
    fields: dict[str, Any] = {tag: (Literal[kind.__name__], ...)}
    for parameter in inspect.signature(kind).parameters.values():
        needed = parameter.default is inspect.Parameter.empty and parameter.name != "constraint"
        annotation = types.get(parameter.name, Numbers)
        fields[parameter.name] = (annotation, ...) if needed else (annotation | None, None)
    return create_model(kind.__name__, __base__=_Part, **fields)


def _one_of(tag: str, *kinds: type, **types: Any) -> Any:
    parts = tuple(_part(kind, tag, **types) for kind in kinds)
    return Annotated[Union[parts], Field(discriminator=tag)]  # noqa: UP007 - of a tuple


if TYPE_CHECKING:
    # At run time, these are made from the classes of the library.
    Recorded: TypeAlias = str
    Tuner: TypeAlias = Any
    Estimator: TypeAlias = Any
    Process: TypeAlias = Any
    SignalPart: TypeAlias = Any
    GuardPart: TypeAlias = Any
else:
    Recorded = Literal[tuple(FIELDS)]
    Constraint = _one_of("name", st.Box, st.Ball, st.Simplex, st.Unconstrained)
    Process = _one_of(
        "process",
        *(st.OrnsteinUhlenbeck, st.Uniform, st.Gaussian, st.PiecewiseConstant, st.RandomWalk, st.Sinusoid, st.Constant),
        period=Number,
    )
    SignalPart = _one_of(
        "signal",
        *(references.Hold, references.Steps, references.Square, references.Ramp, references.Sine),
        hold=Number,
        seconds=Number,
    )
    _WHOLE = {"buffer": int, "episode": int}
    Tuner = _one_of(
        "name",
        st.GaussNewton,
        st.MGAPS,
        st.GAPS,
        st.DiffTune,
        st.OPRF,
        st.Fixed,
        learning_rate=Number,
        constraint=Constraint,
        key=int,
        **_WHOLE,
    )
    Estimator = _one_of(
        "name",
        *(st.AutoEstimator, st.KalmanEstimator, st.RLS, st.NormalizedGradient, st.GradientEstimator),
        *(st.Known, st.Frozen),
        learning_rate=Number,
        constraint=Constraint,
        normalized=bool,
    )

    # `rate = false` switches the limit off, because TOML has no None.
    _GUARD_KINDS = {
        **dict.fromkeys(("window", "bridge", "safe_after"), int),
        "stuck": int | Literal[False],
        "latch": bool,
    }
    GuardPart = create_model(
        "GuardPart",
        __base__=_Part,
        **{
            name: (_GUARD_KINDS.get(name, Number | list[Number] | Literal[False]) | None, None)
            for name in inspect.signature(st.Guard).parameters
        },
    )


class SystemPart(_Part):
    """Where the system comes from: a function in a module beside the configuration, or in a module that the user
    named."""

    make: str = Field(
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="module:function that returns a System or a Loop; or module:name of a Loop",
    )
    arguments: dict[str, Number | str | bool | list[Number]] = {}


class ContextPart(_Part):
    """The context t of each step, as a `LoopContext`: its reference."""

    reference: SignalPart | Numbers | str = Field(description="a signal; numbers, a row for each step; or a CSV file")
    dt: Number | None = Field(default=None, gt=0, description="The sampling period in seconds, for a signal.")


class ScenarioPart(_Part):
    """What nature decides. A `Loop` has all of it, except the steps; `t` may replace the reference of the loop."""

    x0: list[Number] | None = None
    steps: int = Field(gt=0)
    a_star: Process | None = None
    w: Process | None = None
    v: Process | None = None
    t: ContextPart | None = None


class RunPart(_Part):
    seeds: int | list[int] = Field(description="The number of seeds, from 0; or a list of seeds.")
    theta: list[Number] | None = None
    a_hat: list[Number] | None = None
    stride: int = Field(default=1, gt=0)
    record: list[Recorded] = ["x", "theta", "cost"]

    @model_validator(mode="after")
    def _some_seeds(self) -> "RunPart":
        seeds = self.seed_list
        if not seeds or min(seeds) < 0 or len(set(seeds)) != len(seeds):
            raise ArgumentError("seeds", "at least one whole number >= 0, each once", f"{self.seeds}")
        return self

    @property
    def seed_list(self) -> list[int]:
        return list(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds


class RangePart(_Part):
    low: Number
    high: Number
    log: bool = False


Value = bool | int | float | str | list[Any] | dict[str, Any]


class SweepPart(_Part):
    """The settings that a sweep runs: values, or ranges to draw from, by the key that they replace."""

    over: dict[str, list[Value] | RangePart] = Field(min_length=1)
    design: Literal["grid", "random", "latin hypercube"] = "grid"
    points: int | None = Field(default=None, gt=0, description="The number of points, for designs that draw.")
    seed: int = Field(default=0, ge=0, description="The seed of the design.")
    engine: Literal["auto", "native", "xla"] = "auto"
    lanes: int | None = Field(default=None, gt=0)


class Config(_Part):
    """One controller on one scenario, with several seeds; and the settings that a sweep varies."""

    system: SystemPart
    tuner: Tuner | None = None
    estimator: Estimator | None = None
    guard: GuardPart | None = None
    scenario: ScenarioPart
    run: RunPart
    sweep: SweepPart | None = None


_OF_A_SYSTEM = ("tuner", "estimator", "scenario.x0", "scenario.a_star", "scenario.w", "run.theta", "run.a_hat")
"""Keys that a plain System needs. A Loop has its own values: it takes a tuner and an estimator, but not the others."""


OF_A_LOOP = ("measured", "reference", "u", "theta", "cost", "guard")
"""The fields of a loop that are recorded if the file names none."""


class Loaded:
    """A configuration with the objects that it names. Their constructors check the values."""

    loop: st.Loop | None
    """The loop, if `system.make` gives one."""

    def __init__(
        self,
        path: Path,
        *,
        modules: Sequence[str] = (),
        text: str | None = None,
        make: Callable[..., Any] | None = None,
    ):
        """Load the file at `path`; or use `text` as its content and `make` as the function that makes the system.

        The file alone runs no code: the function must be defined in a module beside the file, or in one of `modules`.
        """
        self.path, self._modules = Path(path), tuple(modules)
        try:
            self.text = self.path.read_text(encoding="utf-8") if text is None else text
            self.raw = tomllib.loads(self.text)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{self.path}: not TOML: {error}") from None
        self.make_system = make
        self.sources: dict[str, Path] = {}
        self._make_all(self.raw)

    def changed(self, raw: dict[str, Any]) -> "Loaded":
        """The same configuration with the values of `raw`. Error messages still point into the file."""
        other = copy.copy(self)
        other._make_all(raw)
        return other

    def _make_all(self, raw: dict[str, Any]) -> None:
        try:
            self.config = Config.model_validate(raw)
        except ValidationError as error:
            # One line for each place: for a union of types, pydantic reports one error for each type.
            problems: dict[tuple[str, ...], str] = {}
            for problem in error.errors():
                problems.setdefault((*_walk(problem["loc"])[0],), self._problem(problem))
            raise ConfigError("\n".join(problems.values())) from None
        with jax.enable_x64(True):  # as in the run
            if self.make_system is None:
                self.make_system, self.sources = self._load_maker()
            self.remake_system()
            self._check_keys()
            loop, config = self.loop, self.config
            self.tuner = None if config.tuner is None else self.make("tuner", config.tuner)
            self.estimator = None if config.estimator is None else self.make("estimator", config.estimator)
            self.guard = None if config.guard is None else self.make("guard", config.guard)
            if loop is not None and self.guard is None:
                self.guard = loop.guard()
            self.processes = {
                name: self.make(f"scenario.{name}", part)
                for name in ("a_star", "w", "v")
                if (part := getattr(config.scenario, name)) is not None
            }
            self.reference, self.reference_file = None, None
            if config.scenario.t is not None:
                self.reference = self._make_reference(config.scenario.t)
                try:
                    _ = self.first_context
                except ArgumentError as error:
                    raise self.refuse("scenario.t.reference", str(error)) from None

    def remake_system(self) -> None:
        """Make the system, or the loop, again with the arguments of the configuration."""
        assert self.make_system is not None
        made = self._made_system(self.make_system)
        self.loop = made if isinstance(made, st.Loop) else None
        self.system = made.system if isinstance(made, st.Loop) else made

    @property
    def controller(self) -> st.Controller:
        if self.loop is not None:
            return self.loop.controller(self.tuner, self.estimator)
        assert self.tuner is not None
        assert self.estimator is not None
        return st.Controller(self.system, self.tuner, self.estimator)

    @property
    def record(self) -> list[str]:
        """The fields to record: those of the file; for a loop whose file names none, those of its figure."""
        run = self.config.run
        return run.record if self.loop is None or "record" in run.model_fields_set else list(OF_A_LOOP)

    @property
    def start(self) -> dict[str, Any]:
        """θ₀ and â₀."""
        if self.loop is not None:
            return {"theta": self.loop.theta, "a_hat": self.loop.a_hat}
        return {name: jnp.asarray(getattr(self.config.run, name), float) for name in ("theta", "a_hat")}

    def scenario(self, key: jax.Array) -> st.Scenario:
        """The scenario that the loop, or the processes of the configuration, draw for a key."""
        part = self.config.scenario
        if self.loop is not None:
            return self.loop.scenario(part.steps, key, reference=self.reference)
        sizes = self.system.check(self.x0, **_renamed(self.start), t=self.first_context)
        widths = {"a_star": sizes.p, "w": sizes.n, "v": sizes.k}
        keys: dict[str, Any] = dict(zip(("a_star", "w", "v"), jax.random.split(key, 3), strict=True))
        drawn = {name: process(keys[name], part.steps, widths[name]) for name, process in self.processes.items()}
        return st.Scenario(self.x0, drawn["a_star"], drawn["w"], drawn.get("v"), self._contexts(key, part.steps))

    @property
    def x0(self) -> jax.Array:
        return self.loop.x if self.loop is not None else jnp.asarray(self.config.scenario.x0, float)

    @property
    def first_context(self) -> Any:
        """The shapes of a step's context."""
        if self.loop is not None:
            return self.loop.scenario(1, 0, reference=self.reference).row_shapes().t
        rows = self._contexts(jax.random.key(0), 1)
        if rows is None:
            return jax.ShapeDtypeStruct((), jnp.int32)
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), rows)

    def _contexts(self, key: jax.Array, steps: int) -> st.LoopContext | None:
        if self.reference is None:
            return None
        assert self.config.scenario.t is not None
        dt = self.config.scenario.t.dt
        rows = self.reference.rows(jax.random.fold_in(key, 3), steps, 1.0 if dt is None else float(dt), self._outputs())
        return st.LoopContext(jnp.arange(steps, dtype=jnp.int32), jnp.asarray(rows, float))

    def _outputs(self) -> int:
        """The number of reference values of a step: as many as the reference itself has."""
        return max(np.shape(leaf)[-1] if np.ndim(leaf) else 1 for leaf in self._reference_values())

    def _reference_values(self) -> list[Any]:
        if isinstance(self.reference, references.Recorded):
            return [self.reference.values if self.reference.values.ndim == 2 else 0.0]
        return jax.tree.leaves(self.reference)

    def _make_reference(self, part: ContextPart) -> AbstractReference:
        where, given = "scenario.t.reference", part.reference
        if isinstance(given, BaseModel) and part.dt is None and self.loop is None:
            raise self.refuse("scenario.t", "dt is missing: a signal needs the sampling period in seconds")
        if part.dt is not None and self.loop is not None:
            raise self.refuse("scenario.t.dt", "expected none, because the loop has its sampling period")
        if isinstance(given, BaseModel):
            return self.make(where, given)
        if isinstance(given, str):
            self.reference_file = self.path.resolve().parent / given
            given = self._read_table(where, self.reference_file)
        try:
            return as_reference(given)
        except ValueError as error:
            raise self.refuse(where, str(error)) from None

    def _read_table(self, where: str, path: Path) -> np.ndarray:
        """The numbers of a CSV file; a first line that has no numbers is a header."""
        try:
            lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
            header = bool(lines) and not _are_numbers(lines[0])
            return np.loadtxt(lines[header:], delimiter=",", ndmin=1)
        except (OSError, ValueError) as error:
            raise self.refuse(where, f"{path.name} cannot be read ({error})") from None

    def _check_keys(self) -> None:
        """Raise `ConfigError` unless a System has all keys that it needs, and a Loop none of those that it has."""
        for where in _OF_A_SYSTEM:
            table, _, key = where.partition(".")
            part = getattr(self.config, table)
            given = part if not key else getattr(part, key)
            if self.loop is None and given is None:
                raise self.refuse(table, f"{key} is missing" if key else "this table is missing")
            if self.loop is not None and given is not None and key:
                raise self.refuse(where, "expected none, because the loop has its own")
        if self.loop is not None and self.config.scenario.v is not None:
            raise self.refuse("scenario.v", "expected none, because the agent of a loop observes no residual")

    def refuse(self, where: str, text: str) -> ConfigError:
        """A `ConfigError` about the value at `where`, given as `table.key`."""
        line = line_of(self.text, tuple(where.split(".")))
        return ConfigError(f"{self.path}:{line}: {where}: {text}" if line else f"{self.path}: {where}: {text}")

    def refuse_argument(self, error: ValueError, places: Mapping[str, str], table: str) -> ConfigError:
        """A `ConfigError` about the value at the place of the wrong argument, or about the table for other errors."""
        if isinstance(error, ArgumentError) and error.argument in places:
            return self.refuse(places[error.argument], error.mistake)
        return self.refuse(table, str(error))

    def blame(self, error: BaseException) -> str:
        """The message of an error in the user's code, with the last line in a file beside the configuration."""
        beside, place = self.path.resolve().parent, ""
        for frame in traceback.extract_tb(error.__traceback__):
            if Path(frame.filename).parent == beside:
                place = f"{Path(frame.filename).name}:{frame.lineno}: "
        return f"{place}{type(error).__name__}: {error}"

    def make(self, where: str, part: Any) -> Any:
        """The object of a part. The arguments of its constructor have the names of the keys."""
        values = {name: value for name in type(part).model_fields if (value := getattr(part, name)) is not None}
        kind = values.pop("process", None) or values.pop("signal", None) or values.pop("name", "Guard")
        if "constraint" in values:
            values["constraint"] = self.make(f"{where}.constraint", values["constraint"])
        elif where == "tuner" and self.loop is not None and "constraint" in type(part).model_fields:
            values["constraint"] = self.loop.constraint
        elif where == "estimator" and self.loop is not None and "constraint" in type(part).model_fields:
            values["constraint"] = self.loop.plant.a_constraint
        if kind == "OPRF":
            values["key"] = jax.random.key(values["key"])
        if kind == "Guard":
            is_off = {name: value is False and name != "latch" for name, value in values.items()}
            values = {name: None if is_off[name] else value for name, value in values.items()}
        try:
            return getattr(references if "signal" in type(part).model_fields else st, kind)(**values)
        except ValueError as error:
            places = {name: f"{where}.{name}" for name in type(part).model_fields}
            raise self.refuse_argument(error, places, where) from None

    def _load_maker(self) -> tuple[Callable[..., Any], dict[str, Path]]:
        """The function that makes the system, and its source files: its module, and the modules beside this file that
        were imported."""
        beside = self.path.resolve().parent
        sys.path.insert(0, str(beside))
        try:
            function, source = self._import_maker(beside, *self.config.system.make.split(":"))
            self._made_system(function)  # here, because the function may import more modules
        finally:
            sys.path.remove(str(beside))
        own = _modules_of(beside)
        _OF_CONFIGURATIONS.update(Path(name).parts[0].removesuffix(".py") for name in own)
        sources = {} if source is None else {source.name: source}
        return function, dict(sorted((sources | own).items()))

    def _import_maker(self, beside: Path, module_name: str, name: str) -> tuple[Callable[..., Any], Path | None]:
        top = module_name.partition(".")[0]
        if not self._is_named(module_name) and PathFinder.find_spec(top, [str(beside)]) is None:
            raise self.refuse(
                "system.make", f"there is no module {top!r} beside this file{self._permission(module_name)}"
            )
        # A module of the same name may lie beside another configuration.
        others = {name for name in _OF_CONFIGURATIONS if not _lies_in(beside, name)}
        for loaded in [loaded for loaded in sys.modules if loaded.partition(".")[0] in others]:
            del sys.modules[loaded]
        try:
            module = importlib.import_module(module_name)
        except Exception as error:
            raise self.refuse(
                "system.make", f"module {module_name!r} cannot be imported ({self.blame(error)})"
            ) from error
        function = getattr(module, name, None)
        if isinstance(function, st.Loop):
            function = _Given(function)
        elif callable(function):
            home = _home_of(function)
            if not self._is_named(home) and not _lies_in(beside, home):
                raise self.refuse(
                    "system.make", f"{name} is defined in {home!r}, not beside this file{self._permission(home)}"
                )
        if not callable(function):
            functions = [one for one, value in vars(module).items() if callable(value) and not one.startswith("_")]
            raise self.refuse(
                "system.make", f"module {module_name!r} has no function {name!r}{suggestions.nearest(name, functions)}"
            )
        source = getattr(module, "__file__", None)
        return function, Path(source) if source else None

    def _is_named(self, module_name: str) -> bool:
        """Whether the user named this module, or a package that contains it."""
        return any(module_name == named or module_name.startswith(f"{named}.") for named in self._modules)

    def _permission(self, module_name: str) -> str:
        return f"; if you trust the installed module, name it: --module {module_name}"

    def _made_system(self, function: Callable[..., Any]) -> st.AbstractSystem | st.Loop:
        name = self.config.system.make.split(":")[1]
        try:
            system = function(**self.config.system.arguments)
        except Exception as error:
            raise self.refuse("system.make", f"{name} failed ({self.blame(error)})") from error
        if not isinstance(system, (st.AbstractSystem, st.Loop)):
            raise self.refuse(
                "system.make",
                f"expected {name} to return a selftune.System or a selftune.Loop, got {type(system).__name__}",
            )
        return system

    def _problem(self, problem: Mapping[str, Any]) -> str:
        loc, kind, context = problem["loc"], problem["type"], problem.get("ctx", {})
        keys, valid = _walk(loc)
        where = ".".join(keys)
        if kind == "extra_forbidden":
            text = f"unknown key{suggestions.nearest(keys[-1], valid)}; expected one of {', '.join(valid)}"
        elif kind == "missing":
            *table, key = keys
            where, text = (".".join(table), f"{key} is missing") if table else (key, "this table is missing")
        elif kind == "union_tag_invalid":
            tags = [tag.strip("' ") for tag in context["expected_tags"].split(",")]
            where = f"{where}.{context['discriminator'].strip(chr(39))}"
            text = (
                f"expected one of {', '.join(tags)}, got {context['tag']!r}{suggestions.nearest(context['tag'], tags)}"
            )
        elif kind == "union_tag_not_found":
            text = f"{context['discriminator'].strip(chr(39))} is missing"
        elif kind == "literal_error":
            names = re.findall(r"'([^']*)'", context["expected"])
            hint = suggestions.nearest(str(problem["input"]), names)
            text = f"expected one of {', '.join(names)}, got {problem['input']!r}{hint}"
        elif kind == "string_pattern_mismatch":
            text = f"expected module:function, got {problem['input']!r}"
        elif kind == "value_error":
            where, text = f"{where}.{context['error'].argument}", context["error"].mistake
        else:
            text = f"{problem['msg'][0].lower()}{problem['msg'][1:]}, got {problem['input']!r}"
        return str(self.refuse(where, text))


_OF_CONFIGURATIONS: set[str] = set()
"""The names of modules that were imported from beside a configuration."""


def _lies_in(folder: Path, module_name: str) -> bool:
    """Whether a module was imported from this folder. A virtual environment in the folder, or a package under src/, is
    not imported from the folder itself."""
    path = Path(getattr(sys.modules.get(module_name), "__file__", None) or "")
    top = folder / module_name.partition(".")[0]
    return path == top.with_suffix(".py") or top in path.parents


def _home_of(function: Any) -> str:
    """The name of the module that defines a function or a class; for a partial function, that of its function."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__module__", None))


class _Given:
    """A function that returns a loop which is already made; the loop takes no arguments."""

    def __init__(self, loop: st.Loop):
        self.loop = loop

    def __call__(self) -> st.Loop:
        return self.loop


def _renamed(start: dict[str, Any]) -> dict[str, Any]:
    return {"theta": start["theta"], "a": start["a_hat"]}


def _are_numbers(line: str) -> bool:
    try:
        return bool([float(part) for part in line.split(",")])
    except ValueError:
        return False


def _modules_of(folder: Path) -> dict[str, Path]:
    """The files of all imported modules that lie in `folder`, by their path in it."""
    names = [name for name in list(sys.modules) if _lies_in(folder, name)]
    paths = [Path(str(sys.modules[name].__file__)) for name in names]
    return {path.relative_to(folder).as_posix(): path for path in paths}


def _walk(loc: tuple[Any, ...]) -> tuple[list[str], list[str]]:
    """The keys of a place in the file, without the type names that pydantic inserts; and the valid names there."""
    keys, node, valid = [], Config, list(Config.model_fields)
    for item in loc:
        if isinstance(item, int):
            continue
        if isinstance(node, type) and issubclass(node, BaseModel):
            valid = list(node.model_fields)
            keys.append(item)
            node = node.model_fields[item].annotation if item in node.model_fields else None
            node = _unwrap(node)
        elif isinstance(node, dict):
            node = node.get(item)
    return keys, valid


def _unwrap(annotation: Any) -> Any:
    """The model in an annotation; for a union of several models, a dictionary of them by name."""
    models = [one for one in _leaves(annotation) if isinstance(one, type) and issubclass(one, BaseModel)]
    if len(models) == 1:
        return models[0]
    return {model.__name__: model for model in models} or None


def _leaves(annotation: Any) -> list[Any]:
    inner = [one for part in get_args(annotation) for one in _leaves(part)]
    return inner or [annotation]


def line_of(text: str, keys: tuple[str, ...]) -> int | None:
    """The line of the longest prefix of `keys` that is in the text: TOML's parser does not report lines."""
    table: tuple[str, ...] = ()
    best, line = 0, None
    for number, content in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[+\s*([^\[\]]+?)\s*\]+\s*(#.*)?$", content):
            found = table = _split(header[1])
        elif key := re.match(
            r"\s*((?:[\w-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[\w-]+|\"[^\"]*\"|'[^']*'))*)\s*=", content
        ):
            found = (*table, *_split(key[1]))
        else:
            continue
        if found == keys[: len(found)] and len(found) > best:
            best, line = len(found), number
    return line


def _split(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))
