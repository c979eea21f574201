"""The `README.md` of an export: how to use the C, how to check it, and its cost in memory and operations."""

from typing import Any

from ..native.c import footprint
from ..native.firmware import Firmware, struct_type


def costs(firmware: Firmware, files: dict[str, str]) -> dict[str, Any]:
    """Return the bytes, and the operations of each function; values that need a compiler are None without one."""
    measured = footprint.measure(firmware.name, files)
    functions = {}
    for function in footprint.FUNCTIONS:
        counts = footprint.operations(firmware.programs[function])
        functions[function] = {kind: counts[kind] for kind in footprint.KINDS} | {
            "instructions": measured and measured.instructions.get(function),
            "stack": measured and measured.stack.get(function),
        }
    return {
        "dtype": firmware.dtype.name,
        "state": struct_type(firmware.state_fields).itemsize,
        "info": struct_type(firmware.info_fields).itemsize,
        "flash": measured and measured.flash,
        "compiler": measured and measured.compiler,
        "functions": functions,
    }


def text(firmware: Firmware, costs: dict[str, Any], steps: int, tolerance: float) -> str:
    """Return the text of `README.md`."""
    name, upper, real, sizes = firmware.name, firmware.name.upper(), firmware.real, firmware.sizes
    columns = (*footprint.KINDS, "instructions", "stack")
    rows = [
        f"| `{name}_{function}` | {' | '.join(number(counts[kind]) for kind in columns)} |"
        for function, counts in costs["functions"].items()
    ]
    about = (
        "No compiler was available to measure flash, stack and instructions."
        if costs["compiler"] is None
        else f"Flash: {costs['flash']:,} bytes of code and constants. Flash, stack (bytes) and instructions were\n"
        f"measured with {costs['compiler']}, and the flags\n"
        f"`{' '.join(footprint.FLAGS)}`.\n"
        "Instructions are counted in the disassembly, without those of math.h."
    )
    context = (
        "`t` is the number of the step."
        if firmware.is_counted
        else f"`t` points to the context of the step, `{name}_context`."
    )
    return f"""# {name}

A controller that tunes itself while it runs, written in C99 with `{real}` numbers. States: {sizes.n}; controls:
{sizes.m}; tuned gains: {sizes.d}; estimated model parameters: {sizes.p}. selftune generated these files. Do not edit
them: change the controller in Python and export it again.

```c
#include "{name}.h"

static {name}_state s;
static {real} x[{upper}_N], u[{upper}_M]; /* the measured state, and the control to apply */

void start(void)
{{
    {name}_init(&s);
}}

/* Call this once per sample, after measuring x. */
void sample({"int32_t t" if firmware.is_counted else f"const {name}_context *t"})
{{
    /* Before the first act this call does nothing. If you measure the residual, call {name}_observe instead. */
    {name}_observe_state(&s, x);
    if ({name}_act(&s, x, t, u, 0) != {upper}_OK) {{
        /* The measurement was refused: u is computed from the model's prediction, and nothing is learned. */
    }}
}}
```

{context}
Only one thread at a time may use a `{name}_state`. There are no global variables.

## Check it

```sh
cmake -B build && cmake --build build && ctest --test-dir build --output-on-failure
```

This builds and runs `main.c`, which replays a recorded run of {steps} steps and prints the largest difference,
relative to the largest number of its kind. The difference must be at most {tolerance:g}.

## Cost per call

| | {" | ".join(columns)} |
|---|{"---|" * len(columns)}
{chr(10).join(rows)}

RAM: {costs["state"]:,} bytes for the state; {costs["info"]:,} more bytes if you use `info`.
{about}

Do not compile with `-ffast-math`: the code must be able to detect NaN and infinity. With `-std=c99` the compiler does
not fuse products and sums, so that every compiler gives the same numbers. `-ffp-contract=fast -fno-math-errno` is
faster, but rounds differently.
"""


def number(count: int | None) -> str:
    """Return the text of a table cell."""
    return "–" if count is None else f"{count:,}"
