"""`python -m tests.independent`: make the golden files, or compare the stored ones with what the program makes."""

import argparse
from pathlib import Path

import numpy as np

from .golden import PROBLEMS, TOLERANCE, arrays, differences


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.independent", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parents[1] / "golden", help="the folder of the files"
    )
    parser.add_argument("--check", action="store_true", help="compare only; exit with 1 where an array differs")
    options = parser.parse_args()
    agree = True
    for name, problem in PROBLEMS.items():
        made, path = arrays(problem()), options.out / f"{name}.npz"
        if not options.check:
            np.savez_compressed(path, **made)
            print(f"{path}: {len(made)} arrays")
            continue
        with np.load(path) as stored:
            found = differences(made, dict(stored))
        largest = max(found, key=lambda key: found[key])
        print(f"{path}: largest difference {found[largest]:.1e}, in {largest}")
        agree &= found[largest] <= TOLERANCE
    return 0 if agree else 1


if __name__ == "__main__":
    raise SystemExit(main())
