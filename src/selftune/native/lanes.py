"""A batch of closed loops as one C function: many runs, called lanes, in the vector registers of the processor.

The state of all lanes is an array for each number, and the statements of a step stand in one loop over the lanes, which
the compiler turns into vector instructions. A lane makes the same operations in the same order as a single run, so its
results are the same bit for bit.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from ..control import result_codes
from .c import elementary
from .c.emit import TYPES, Writer
from .c.templates import fill
from .lowering.from_jaxpr import Leaf, Program
from .lowering.graph import Graph
from .roles import ROLES, Role, size_of_checked, stays_in_array, storage, variable

if TYPE_CHECKING:
    from .loop import Loop

LANES = 16
"""The number of lanes of one call: two vectors of doubles with AVX-512, so that one computes while the other waits."""
MAX_SIZE = 20_000
"""Programs of more numbers than this have no lanes: the compiler's time grows too much."""
TILE_BYTES = 1 << 16
"""About how many bytes of inputs and rows are copied at once, to and from the order that lanes need."""
MAX_TILE = 64
ALIGNED_TILE = 8
"""The number of steps that are copied at once is a multiple of this, so that rows begin where vectors may begin."""
CACHED_BYTES = 1 << 22
"""If a group of lanes records more than this, the caches are too small to keep it: the rows pass by them."""
DIRECT_STORES = {"double": ("__AVX__", "__builtin_ia32_movntpd256"), "float": ("__SSE__", "__builtin_ia32_movntps")}
"""For the types that are copied in squares, the instructions that gcc needs to store past the caches, and the store."""
ALWAYS = "__attribute__((always_inline))"


def has_lanes(program: Program) -> bool:
    """Return whether a program can run in lanes."""
    graph = program.graph
    live = program.live()
    if len(live) > MAX_SIZE or any(map(stays_in_array, program.inputs)):
        return False
    return all(_has_lane_form(graph, node) for node in live)


def _has_lane_form(graph: Graph, node: int) -> bool:
    """Return whether compilers write an operation with vector instructions.

    A division of integers by a constant of 32 bits becomes a product; other divisions of integers have no vector form.
    """
    op, integer = graph.ops[node], graph.dtypes[node].kind in "iu"
    if op in ("div", "rem") and integer:
        return graph.dtypes[node].itemsize == 4 and graph.is_constant(graph.args[node][1])
    return op not in ("table", "loop", "nextafter", "rem")


class Mode(Enum):
    """Where the lanes of a group read a series."""

    OWN = "each lane has its own rows"
    SHARED = "all lanes read the same row"
    SLIDING = "each lane reads the row behind that of the lane before"


def lanes_source(loop: "Loop", modes: Sequence[Mode]) -> str:
    """Return the C source of a loop's function for lanes; `modes` has the mode of each series."""
    program = loop.program
    mode_of = dict(zip((leaf.name for leaf in program.inputs if ROLES[leaf.group] is Role.SERIES), modes, strict=True))
    inputs, outputs = (
        {role: [leaf for leaf in leaves if ROLES[leaf.group] is role and leaf.ids.size] for role in Role}
        for leaves in (program.inputs, program.outputs)
    )
    checked = outputs[Role.CHECKED]
    count = sum(leaf.ids.size for leaf in checked)
    begins = {leaf.name: sum(other.ids.size for other in checked[:i]) for i, leaf in enumerate(checked)}
    (x,) = (leaf for leaf in program.inputs if leaf.group == "x")
    real = TYPES[x.dtype.name]
    absolute, largest = ("fabsf", "FLT_MAX") if real == "float" else ("fabs", "DBL_MAX")
    rows = [leaf for leaf in program.outputs if ROLES[leaf.group] is Role.RECORDED]
    row_index = {leaf.name: len(program.inputs) + i for i, leaf in enumerate(rows)}

    def array_index(leaf: Leaf) -> int:
        return row_index[leaf.name] if leaf.group == "row" else loop.array_index[leaf.group, leaf.position]

    def load(leaf: Leaf, i: int) -> str:
        role = ROLES[leaf.group]
        if role is Role.SERIES and mode_of[leaf.name] is Mode.OWN:
            return f"in_{leaf.name}[LANES * ({leaf.ids.size} * at + {i}) + lane]"
        if role is Role.SERIES:
            row = "s" if mode_of[leaf.name] is Mode.SHARED else "(s + lane)"
            return f"in_{leaf.name}[{leaf.ids.size} * {row} + {i}]"
        if role is Role.STEP:
            return variable(leaf, i)
        return f"now->{variable(leaf, i)}[lane]" if role is Role.STATE else f"{variable(leaf, i)}[lane]"

    def store(leaf: Leaf, i: int) -> str:
        role = ROLES[leaf.group]
        if role is Role.RECORDED:
            return f"out_{leaf.name}[LANES * ({leaf.ids.size} * slot + {i}) + lane]"
        return f"checked[{begins[leaf.name] + i}][lane]" if role is Role.CHECKED else f"next->{variable(leaf, i)}[lane]"

    def memory(leaf: Leaf, i: int | str, constant: str = "const ") -> str:
        return f"(({constant}{storage(leaf.dtype)} *)arrays[LANES * {array_index(leaf)} + lane])[{i}]"

    def numbers(role: Role) -> list[tuple[Leaf, int]]:
        return [(leaf, i) for leaf in inputs[role] for i in range(leaf.ids.size)]

    series = [leaf for leaf in inputs[Role.SERIES] if mode_of[leaf.name] is Mode.OWN]
    in_place = [leaf for leaf in inputs[Role.SERIES] if mode_of[leaf.name] is not Mode.OWN]
    recorded = outputs[Role.RECORDED]
    step_bytes = LANES * sum(leaf.ids.size * leaf.dtype.itemsize for leaf in (*series, *recorded))
    writer = Writer(program, load, store, share_divisors=True, mask="int32_t" if real == "float" else "int64_t")
    body = writer.body()
    kinds = {leaf.dtype.name: leaf.dtype for leaf in (*series, *recorded)}
    start = [
        (f"checked[{position}][lane]", f"now->{variable(leaf, i)}[lane]")
        for position, (leaf, i) in enumerate((leaf, i) for leaf in loop.checked_inputs for i in range(leaf.ids.size))
    ]
    start += [(f"checked[{position}][lane]", "0") for position in range(len(start), count)]
    angles = _farthest(writer.angles)
    arrays = len(program.inputs) + len(rows)
    values = {
        "lanes": LANES,
        "tile": max(1, min(MAX_TILE, TILE_BYTES // max(step_bytes, 1)) // ALIGNED_TILE) * ALIGNED_TILE,
        "row_bytes": sum(leaf.ids.size * leaf.dtype.itemsize for leaf in recorded),
        "cached_bytes": CACHED_BYTES,
        # A call inside the loop over lanes would be made lane by lane.
        "helpers": "\n".join(body.helpers.values()).replace("static inline ", f"static inline {ALWAYS} "),
        "members": [f"{TYPES[leaf.dtype.name]} {variable(leaf, i)}[LANES];" for leaf, i in numbers(Role.STATE)],
        "copies": "\n".join(_copies(storage(kind), TYPES[kind.name]) for kind in kinds.values()),
        "load_state": [f"state->{variable(leaf, i)}[lane] = {memory(leaf, i)};" for leaf, i in numbers(Role.STATE)],
        "store_state": [
            f"{memory(leaf, i, '')} = ({storage(leaf.dtype)})state->{variable(leaf, i)}[lane];"
            for leaf, i in numbers(Role.STATE)
        ],
        "real": real,
        "absolute": absolute,
        "largest": largest,
        "count": count,
        "n": x.ids.size,
        "ok": result_codes.OK,
        "diverged": result_codes.DIVERGED,
        "non_finite": result_codes.NON_FINITE,
        "limit": loop.array_index["limit", 0],
        "step": loop.array_index["step", 0],
        "declared": [
            *(f"{TYPES[leaf.dtype.name]} {variable(leaf, i)}[LANES];" for leaf, i in numbers(Role.SETTING)),
            *(f"{TYPES[leaf.dtype.name]} in_{leaf.name}[LANES * {leaf.ids.size} * TILE];" for leaf in series),
            # One slot more, for the steps after the last one that is recorded.
            *(f"{TYPES[leaf.dtype.name]} out_{leaf.name}[LANES * {leaf.ids.size} * (TILE + 1)];" for leaf in recorded),
        ],
        "in_place": [
            f"const {storage(leaf.dtype)} *const in_{leaf.name} = "
            f"(const {storage(leaf.dtype)} *)arrays[LANES * {array_index(leaf)}];"
            for leaf in in_place
        ],
        "arrays": arrays,
        "settings": [f"{variable(leaf, i)}[lane] = {memory(leaf, i)};" for leaf, i in numbers(Role.SETTING)],
        "start": [f"{place} = {value};" for place, value in start],
        "gather": [
            f"gather_{storage(leaf.dtype)}(in_{leaf.name}, &arrays[LANES * {array_index(leaf)}], "
            f"{leaf.ids.size} * tile, {leaf.ids.size} * length);"
            for leaf in series
        ],
        "statements": body.loads + body.statements,
        "store": [line for lines in body.stores.values() for line in lines],
        "size": size_of_checked(real, [f"checked[{i}][lane]" for i in range(count)], x.ids.size),
        "doubts": [*angles, f"const int doubt = !(size <= bound[lane]){' | (is_far << 1)' if angles else ''};"],
        "redo": _redo(arrays, recorded, memory) if angles else "",
        "scatter": [
            f"scatter_{storage(leaf.dtype)}(&arrays[LANES * {array_index(leaf)}], out_{leaf.name}, "
            f"{leaf.ids.size} * first_row, {leaf.ids.size} * slot, wanted"
            f"{', past_caches' if storage(leaf.dtype) in DIRECT_STORES else ''});"
            for leaf in recorded
        ],
    }
    return fill(Path(__file__).with_name("templates") / "closed_loop_lanes.c.in", values)


def _copies(kind: str, ctype: str) -> str:
    """Return the functions that copy numbers of one type to and from the order of lanes."""
    templates = Path(__file__).with_name("templates")
    if kind in DIRECT_STORES:
        instructions, direct_store = DIRECT_STORES[kind]
        values = {"type": ctype, "instructions": instructions, "store": direct_store}
        return fill(templates / "copy_squares.c.in", values)
    return fill(templates / "copy_lanes.c.in", {"storage": kind, "type": ctype})


def _farthest(angles: list[tuple[str, str]]) -> list[str]:
    """Return the statements that compute the largest angle, and whether it is too large for lanes.

    Numbers are compared instead of conditions, because gcc would make vectors of bytes of many conditions. NaN is not
    larger than any number, and needs no other function.
    """
    lines, tests = [], []
    for ctype in sorted({ctype for _, ctype in angles}):
        suffix = "f" * (ctype == "float")
        farthest = f"0.0{suffix}"
        for i, angle in enumerate(dict.fromkeys(text for text, other in angles if other == ctype)):
            lines.append(f"const {ctype} angle_{i}_{ctype} = fabs{suffix}({angle});")
            larger = f"angle_{i}_{ctype} > {farthest} ? angle_{i}_{ctype} : {farthest}"
            farthest = f"farthest_{i}_{ctype}"
            lines.append(f"const {ctype} {farthest} = {larger};")
        tests.append(f"({farthest} > {elementary.LARGE_ANGLE[ctype]}{suffix})")
    return [*lines, f"const int is_far = {' | '.join(tests)};"] if angles else []


def _redo(arrays: int, recorded: list[Leaf], memory: Callable[..., str]) -> list[str]:
    """Return the statements that repeat a step of one lane without limits of the angles."""
    rows = []
    for leaf in recorded:
        size = leaf.ids.size
        places = [f"out_{leaf.name}[LANES * ({size} * slot + {i}) + lane]" for i in range(size)]
        rows += [f"{place} = {memory(leaf, f'{size} * row + {i}')};" for i, place in enumerate(places)]
    path = Path(__file__).with_name("templates") / "redo_lane.c.in"
    return fill(path, {"arrays": arrays, "rows": rows}).splitlines()
