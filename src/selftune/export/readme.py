"""The `README.md` of an export: how to use the C, how to check it, and what it costs."""

from typing import Any

from ..native.c import footprint
from ..native.firmware import Firmware, struct_type


def costs(firmware: Firmware, files: dict[str, str]) -> dict[str, Any]:
    """Bytes, and for each function its operations; what a compiler is needed for is None where there is none."""
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
    """`README.md`."""
    name, upper, real, sizes = firmware.name, firmware.name.upper(), firmware.real, firmware.sizes
    columns = (*footprint.KINDS, "instructions", "stack")
    rows = [
        f"| `{name}_{function}` | {' | '.join(number(counts[kind]) for kind in columns)} |"
        for function, counts in costs["functions"].items()
    ]
    about = (
        "No compiler was at hand to measure flash, stack and instructions with."
        if costs["compiler"] is None
        else f"Flash: {costs['flash']:,} bytes of code and constants. Flash, stack (bytes) and instructions are by\n"
        f"{costs['compiler']}, with `{' '.join(footprint.FLAGS)}`;\n"
        "instructions are counted in the listing, without those of math.h."
    )
    context = (
        "`t` is the number of the step."
        if firmware.is_counted
        else f"`t` points to the context of the step, `{name}_context`."
    )
    return f"""# {name}

A controller that tunes itself while it runs, as C99, in `{real}`. States: {sizes.n}; controls: {sizes.m}; gains that
are tuned: {sizes.d}; model parameters that are estimated: {sizes.p}. Written by selftune; to change it, change the
controller and export it again.

```c
#include "{name}.h"

static {name}_state s;
static {real} x[{upper}_N], u[{upper}_M]; /* measured, and to be applied */

void start(void)
{{
    {name}_init(&s);
}}

/* Once a sample, with x measured. */
void sample({"int32_t t" if firmware.is_counted else f"const {name}_context *t"})
{{
    /* Refused before the first act. Or {name}_observe, where the residual itself is measured. */
    {name}_observe_state(&s, x);
    if ({name}_act(&s, x, t, u, 0) != {upper}_OK) {{
        /* the step was refused: u is of the state that the model predicts, and nothing is learned from this one */
    }}
}}
```

{context}
A `{name}_state` may be used by one thread at a time; there are no globals.

## Check it

```sh
cmake -B build && cmake --build build && ctest --test-dir build --output-on-failure
```

builds `main.c`, which replays a recorded run of {steps} steps and prints the largest difference, relative to the
largest number of its kind. It must be at most {tolerance:g}.

## What it costs

| | {" | ".join(columns)} |
|---|{"---|" * len(columns)}
{chr(10).join(rows)}

RAM: {costs["state"]:,} bytes of state; {costs["info"]:,} more where `info` is asked for.
{about}

Compile without `-ffast-math`: what is not finite must be seen. `-std=c99` keeps products and sums apart, so that
every compiler gives the same numbers; `-ffp-contract=fast -fno-math-errno` is faster, and rounds otherwise.
"""


def number(count: int | None) -> str:
    """As tables have it."""
    return "–" if count is None else f"{count:,}"
