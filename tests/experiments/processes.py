"""Tasks that take a moment each, in processes, for tests that interrupt them: little is imported here."""

import sys
import time
from functools import partial
from pathlib import Path

import numpy as np

from selftune.foundation.executors import Meter, Processes
from selftune.storage.store import Layout, RunStore, Variable
from selftune.storage.tasks import run_tasks

LAYOUT = Layout(("seed",), {"seed": np.arange(6)}, {"square": Variable(("seed",), "float64")})


def begin(folder):
    return RunStore.begin(Path(folder), kind="robots", settings={}, layout=LAYOUT)


def square(pause, task):
    time.sleep(pause)
    return {"square": np.asarray(float(task[0] ** 2))}


def main(folder):
    try:
        with begin(folder) as store:
            run_tasks(store, partial(square, 0.5), [1] * 6, Processes(2), Meter(None))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main(sys.argv[1])
