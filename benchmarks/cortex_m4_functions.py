"""`python -m benchmarks.cortex_m4_functions`: instructions of elementary functions on a Cortex-M4F, against newlib's.

The board is emulated by QEMU, whose timer counts instructions. Both sides are float, inline or a call as the compiler
chooses, at 256 random numbers. The loop without a function is subtracted.
"""

import tempfile
from pathlib import Path

from tests.native import cortex_m4

from selftune.native.c import elementary

LOW_HIGH = {"log": (0.01, 10), "asin": (-1, 1), "acos": (-1, 1), "log1p": (-0.9, 5), "pow": (0.01, 5)}
"""Where the arguments are drawn, if it is not -5 to 5."""
WITHOUT_NEWLIB = ("logistic",)
OF_TWO = ("pow", "atan2")
NAMES = ("sin", "cos", "tan", "exp", "log", "tanh", "logistic", "atan", "atan2", "asin", "acos", "sinh", "cosh", "pow")
NAMES += ("cbrt", "erf", "log1p", "expm1")
MAIN = """
#include <math.h>
#include <stdint.h>
#include <stdio.h>
HELPERS
struct timer { volatile uint32_t control, value, reload; };
static struct timer *const timer = (struct timer *)0x40000000u; /* CMSDK timer 0 at 25 MHz, counting down */
enum { COUNT = 256, TICK = 40 };
static float x[COUNT], y[COUNT];
static volatile float out;
static void draw(float low, float high)
{
    uint32_t random = 1;
    for (int i = 0; i < COUNT; i++) {
        random = random * 1664525u + 1013904223u;
        x[i] = low + (high - low) * (float)(random >> 8) / 16777216.0f;
        random = random * 1664525u + 1013904223u;
        y[i] = 4.0f * (float)(random >> 8) / 16777216.0f - 2.0f;
    }
}
static uint32_t since(uint32_t start) { return start - timer->value; }
int main(void)
{
    timer->reload = timer->value = UINT32_MAX;
    timer->control = 1;
    CALLS
    return 0;
}
"""
CALL = """
    {
        draw(LOWf, HIGHf);
        uint32_t start = timer->value;
        for (int i = 0; i < COUNT; i++) out = x[i] + y[i];
        const uint32_t empty = since(start);
        start = timer->value;
        for (int i = 0; i < COUNT; i++) out = EXPRESSION;
        printf("TITLE %.1f\\n", (double)(since(start) - empty) * TICK / COUNT);
    }
"""


def main() -> None:
    if not cortex_m4.available():
        print(cortex_m4.advice())
        return
    calls = ""
    for name in NAMES:
        low, high = LOW_HIGH.get(name, (-5, 5))
        second = ", y[i]" if name in OF_TWO else ""
        expressions = {"ours": f"{name}_float(x[i]{second})", "newlib": f"{name}f(x[i]{second})"}
        for title, expression in expressions.items():
            if title == "newlib" and name in WITHOUT_NEWLIB:
                expression = "1.0f / (1.0f + expf(-x[i]))"
            words = {
                "LOW": f"{float(low)}",
                "HIGH": f"{float(high)}",
                "EXPRESSION": expression,
                "TITLE": f"{name}:{title}",
            }
            text = CALL
            for word, meaning in words.items():
                text = text.replace(word, meaning)
            calls += text
    helpers = "\n".join(elementary.needed(f"{name}_float" for name in NAMES).values())
    with tempfile.TemporaryDirectory() as folder:
        source, elf = Path(folder) / "main.c", Path(folder) / "main.elf"
        source.write_text(MAIN.replace("HELPERS", helpers).replace("CALLS", calls))
        cortex_m4._call(
            *(cortex_m4.CC, *cortex_m4.MACHINE, *cortex_m4.EXACT, source, cortex_m4.BOARD / "startup.c"),
            *("-nostartfiles", "--specs=rdimon.specs", "-T", cortex_m4.BOARD / "mps2-an386.ld", "-lm", "-o", elf),
        )
        printed = cortex_m4.run(elf)
    counted = dict(line.rsplit(" ", 1) for line in printed.splitlines())
    print(f"{'':10} {'ours':>8} {'newlib':>8} {'ratio':>8}")
    for name in NAMES:
        ours, newlib = (float(counted[f"{name}:{title}"]) for title in ("ours", "newlib"))
        print(f"{name:10} {ours:8.0f} {newlib:8.0f} {ours / newlib:8.2f}")


if __name__ == "__main__":
    main()
