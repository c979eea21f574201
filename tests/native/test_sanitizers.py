"""All of the table's functions as one program of its own, run under the sanitizers and under valgrind."""

import os
import shutil
import subprocess
from functools import cache

import numpy as np
import pytest

from selftune.native.c.compilation import compiler
from selftune.native.c.emit import TYPES, literal

from .compiled import STRICT, source, write
from .test_primitives import GROUPS

# Division by zero is wanted: it is IEEE's. A float that does not fit a whole number is not.
SANITIZE = ("-fsanitize=address,undefined,float-cast-overflow,shift,bounds", "-fno-sanitize-recover=all")
TRIALS = 3

MAIN = """
#include <stdio.h>
#include <stdlib.h>

typedef void function(const void *const *, void *const *);

static unsigned long run(function *f, const void *const *in, int n, const size_t *size)
{
    unsigned long sum = 0;
    void *out[16] = {0};
    for (int i = 0; i < n; i++) {
        out[i] = malloc(size[i] ? size[i] : 1);
        if (!out[i]) exit(2);
    }
    f(in, out);
    for (int i = 0; i < n; i++) {
        for (size_t k = 0; k < size[i]; k++) sum = 31u * sum + ((unsigned char *)out[i])[k];
        free(out[i]);
    }
    return sum;
}
"""


@cache
def program(dtype: str) -> str:
    """The functions, and a main that calls each on finite numbers and on nasty ones, into memory of the right size."""
    rng = np.random.default_rng(2)
    functions, calls = {}, []
    for case in (case for cases in GROUPS.values() for case in cases):
        written = write(case.function, *case.arguments(dtype, rng), sparse=False).program
        functions[case.name] = written
        sizes = [leaf.ids.size * (4 if leaf.dtype == bool else leaf.dtype.itemsize) for leaf in written.outputs]
        for trial in range(TRIALS):
            arguments = case.arguments(dtype, rng, nasty=trial > 0)
            arrays = [
                f"static const {TYPES[array.dtype.name]} x{i}[] = "
                f"{{{', '.join(literal(number, array.dtype) for number in array.ravel())}}};"
                for i, array in enumerate(arguments)
            ]
            calls += [
                "    {",
                *(f"        {array}" for array in arrays),
                f"        const void *in[] = {{{', '.join(f'x{i}' for i in range(len(arguments)))}}};",
                f"        const size_t size[] = {{{', '.join(map(str, sizes))}}};",
                f"        sum += run(f_{case.name}, in, {len(sizes)}, size);",
                "    }",
            ]
    body = ["int main(void)", "{", "    unsigned long sum = 0;", *calls]
    return source(functions) + MAIN + "\n".join([*body, '    printf("%lu\\n", sum);', "    return 0;", "}", ""])


def executable(folder, dtype: str, flags: tuple[str, ...]):
    text, made = folder / f"{dtype}.c", folder / dtype
    text.write_text(program(dtype))
    done = subprocess.run(
        [*compiler(), *STRICT, "-O0", "-g", *flags, str(text), "-o", str(made), "-lm"], capture_output=True, text=True
    )
    if "cannot find" in done.stderr and not os.environ.get("SELFTUNE_NEEDS_SANITIZERS"):
        pytest.skip("the compiler has no sanitizers")
    assert done.returncode == 0, done.stderr[:2000]
    return str(made)


def clean(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[:3000]
    assert done.stdout.strip().isdigit()


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_clean_under_the_sanitizers(tmp_path, dtype):
    clean(executable(tmp_path, dtype, SANITIZE))


@pytest.mark.skipif(
    not (shutil.which("valgrind") or os.environ.get("SELFTUNE_NEEDS_VALGRIND")), reason="needs valgrind"
)
@pytest.mark.slow
def test_clean_under_valgrind(tmp_path):
    """Nothing that was never written is read: the sum of all bytes of all results is printed."""
    clean("valgrind", "--error-exitcode=1", "--leak-check=full", "--quiet", executable(tmp_path, "float64", ()))
