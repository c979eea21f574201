"""`python -m benchmarks.ulps [--every N] [FUNCTION ...]`: largest errors of the elementary functions of generated C.

In single precision all 2^32 numbers are tried, or every N-th; of a function of two numbers, so many random pairs. The
oracle is the function in double precision, which is compared with libm's on the way. In double precision the oracle is
mpmath, at random numbers and at difficult ones. All functions together take about a quarter of an hour of CPU time.
"""

import argparse
import time
from collections.abc import Sequence

import numpy as np
from tests.native import test_elementary, vector_math

from selftune.native.c import elementary

ALL = 2**32
DRAWN = 2_000


def double_error(name: str) -> float:
    """The largest error in double precision, at a few times `DRAWN` numbers."""
    x, y = test_elementary.numbers(name, np.random.default_rng(20), DRAWN)
    x = np.concatenate([x, test_elementary.HARD.get(name, [])]) if y is None else x
    values = vector_math.Functions("double")(name, x, y)
    arguments = zip(x, strict=True) if y is None else zip(x, y, strict=True)
    return max(
        test_elementary.error(value, test_elementary.exact(name, *map(float, given)))
        for value, given in zip(values, arguments, strict=True)
    )


def main(names: Sequence[str] = (), every: int = 1) -> None:
    print(f"{'':10} {'float':>8} {'at':>16} {'double':>8} {'oracle':>9} {'CPU s':>7}")
    for name in names or elementary.FUNCTIONS:
        begin = time.process_time()
        found = vector_math.float_error(name, ALL // every, every)
        in_double = double_error(name)
        taken = time.process_time() - begin
        print(
            f"{name:10} {found.worst:8.4f} {found.at:16.8g} {in_double:8.4f} {found.oracle:9.1e} {taken:7.0f}",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("names", nargs="*")
    main(**vars(parser.parse_args()))
