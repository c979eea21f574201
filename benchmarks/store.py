"""What storing a task costs: in a local folder, and on an S3 server (moto) that runs beside, on this machine.

The stand-in answers at once, but slowly: an object store far away takes longer for a request and serves more at a time.
What carries over is the number of requests, and this process's own seconds (CPU), which bound what one client can do.
"""

import multiprocessing
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from aiobotocore.client import AioBaseClient

from selftune.storage import files
from selftune.storage.store import Layout, RunStore, Variable

LANES, PARTS, PARAMETERS = 64, 20, 4
TASKS, MARKERS = 100, 1000


def layout(tasks: int) -> Layout:
    coords = {"task": tasks, "lane": LANES, "part": PARTS, "parameter": PARAMETERS}
    variables = {"mean_cost": (), "part_cost": ("part",), "theta": ("parameter",)}
    return Layout(
        ("task",),
        {name: np.arange(size) for name, size in coords.items()},
        {name: Variable(("task", "lane", *rest), "float64") for name, rest in variables.items()},
    )


def arrays(task: int) -> dict[str, np.ndarray]:
    drawn = np.random.default_rng(task)
    shapes = {"mean_cost": (LANES,), "part_cost": (LANES, PARTS), "theta": (LANES, PARAMETERS)}
    return {name: drawn.normal(size=shape) for name, shape in shapes.items()}


def serve(port: Connection) -> None:
    import logging

    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    port.send(server.get_host_and_port()[1])
    port.recv()


def measure(what: str, amount: int, function: Callable[[], Any]) -> Any:
    """Print what one of `amount` costs."""
    REQUESTS.clear()
    wall, cpu = time.perf_counter(), time.process_time()
    result = function()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(
        f"  {what:34} {1e3 * wall / amount:10.2f} {1e3 * cpu / amount:10.2f} {REQUESTS.total() / amount:10.2f}  "
        + ", ".join(f"{count} {name}" for name, count in sorted(REQUESTS.items()))
    )
    return result


REQUESTS: Counter[str] = Counter()


def count_requests() -> None:
    call = AioBaseClient._make_api_call

    def counting(self: Any, operation: str, parameters: Any) -> Any:
        REQUESTS[operation] += 1
        return call(self, operation, parameters)

    AioBaseClient._make_api_call = counting  # pyright: ignore[reportAttributeAccessIssue]


def one(title: str, folder: str) -> None:
    print(f"\n{title:36} {'ms':>10} {'ms of CPU':>10} {'requests':>10}")
    given = [arrays(task) for task in range(TASKS)]

    def begin(tasks: int = TASKS) -> RunStore:
        return RunStore.begin(f"{folder}/{tasks}", kind="bench", settings={}, layout=layout(tasks))

    def write() -> None:
        for task in store.tasks:
            store.write(task, given[task[0]])

    with measure("begin a run", 1, begin) as store:
        measure("attach to it", 1, lambda: RunStore(store.folder))
        measure("ask whether one task is done", 10, lambda: [store.done(task) for task in store.tasks[:10]])
        measure("write a task (3 arrays, 64 lanes)", TASKS, write)
        measure("verify a task", TASKS, store.verify)
        measure("finish, a task", TASKS, store.finish)
    with begin(MARKERS) as store:
        list(files.map_parallel(store.folder, lambda task: files.write(store._marker_path(task), b"{}"), store.tasks))
        assert measure(f"list {MARKERS} markers", 1, store.pending) == []


def main() -> None:
    import fsspec

    count_requests()
    with tempfile.TemporaryDirectory() as folder:
        one("Local folder", str(Path(folder)))
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=serve, args=(theirs,))
    server.start()
    os.environ |= {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{ours.recv()}", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ |= {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
    try:
        fsspec.filesystem("s3").mkdir("bench")
        one("S3, by moto on this machine", "s3://bench/run")
    finally:
        ours.send(None)
        server.join()


if __name__ == "__main__":
    main()
