"""Tasks that take a moment each, in processes, for tests that interrupt them: little is imported here."""

import sys
import time
from pathlib import Path

import numpy as np

from selftune.storage.store import Layout, RunStore, Variable
from selftune.storage.tasks import run_in_processes

LAYOUT = Layout(("seed",), {"seed": np.arange(6)}, {"square": Variable(("seed",), "float64")})


def begin(folder):
    return RunStore.begin(Path(folder), kind="robots", settings={}, layout=LAYOUT)


def square(pause, task):
    time.sleep(pause)
    return {"square": np.asarray(float(task[0] ** 2))}


def main(folder):
    try:
        with begin(folder) as store:
            run_in_processes(store, square, 0.5, [1] * 6, workers=2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main(sys.argv[1])
