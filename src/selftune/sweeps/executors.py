"""Run the tasks of a sweep on this machine or on a cluster. Each result is written as soon as it is computed."""

import hashlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from functools import lru_cache
from typing import Any, TypeAlias

import jax
import numpy as np

from ..foundation import arguments
from ..foundation.errors import InputError
from ..storage import manifest
from ..storage.store import RunStore
from .plan import RAISED, Plan, configured, error_in_words

Outcome: TypeAlias = tuple[int, dict[str, np.ndarray] | BaseException]
"""The number of a task, with its arrays or with the exception of its last attempt."""


class ClusterError(InputError):
    """A fault of the cluster, not of a task."""


def check(executor: Any) -> None:
    """Raise an error unless `executor` is None, the address of a Dask scheduler or a client of one."""
    if executor is None:
        return
    try:
        from dask.distributed import Client
    except ImportError as error:
        raise ClusterError(f"executor: a cluster needs Dask ({error}); pip install 'selftune[cluster]'") from None
    if not isinstance(executor, (str, Client)):
        raise ValueError(
            f"executor: expected None, the address of a Dask scheduler or a Client, got {arguments.describe(executor)}"
        )


def run_tasks(
    store: RunStore,
    plan: Plan,
    *,
    executor: Any = None,
    retries: int = 2,
    workers: int = 1,
    progress: Callable[[int, int], Any] | None = None,
) -> None:
    """Compute and write all pending tasks, and complete the run. A failed task is recorded as failed."""
    if store.complete:
        return
    sizes = [len(block.points) * len(block.seeds) for block in plan.blocks]
    pending = [i for (i,) in store.pending()]
    done, total = sum(sizes) - sum(sizes[i] for i in pending), sum(sizes)

    def tell() -> None:
        if progress is not None:
            progress(done, total)

    tell()
    if pending:
        outcomes = (
            _here(plan, pending, workers, retries)
            if executor is None
            else _on_cluster(executor, plan, pending, retries)
        )
        for i, outcome in outcomes:
            if isinstance(outcome, BaseException):
                store.write((i,), _nothing(plan, i), failed=error_in_words(outcome))
            else:
                store.write((i,), outcome)
            done += sizes[i]
            tell()
    store.finish()


class Programs:
    """The programs of a plan. Each is compiled once, for all threads."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self._jitted = [jax.jit(plan.program(group)) for group in plan.groups]

    def compute(self, i: int) -> dict[str, np.ndarray]:
        """The arrays to store of task i."""
        plan, block = self.plan, self.plan.blocks[i]
        with configured(plan.options):
            arrays = jax.device_get(self._jitted[block.group](*plan.arguments(block)))
        return _in_lanes(plan, i, arrays)


def _in_lanes(plan: Plan, i: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The runs of a task along one axis (lanes), point by point. Lanes without a run have NaN and −1."""
    block = plan.blocks[i]
    points, seeds = len(block.points), len(block.seeds)
    arrays = {name: value[:points, :seeds] for name, value in arrays.items()}
    arrays["point"] = np.repeat(np.asarray(block.points, np.int32), seeds).reshape(points, seeds)
    arrays["seed"] = np.tile(np.asarray(block.seeds, np.int32), points).reshape(points, seeds)
    lanes = {}
    for name, value in arrays.items():
        fill = np.nan if value.dtype.kind == "f" else -1
        lanes[name] = np.full((plan.lanes, *value.shape[2:]), fill, value.dtype)
        lanes[name][: points * seeds] = value.reshape(points * seeds, *value.shape[2:])
    return lanes


def _nothing(plan: Plan, i: int) -> dict[str, np.ndarray]:
    """The arrays to store of a task that raised an error."""
    block = plan.blocks[i]
    shape = len(block.points), len(block.seeds)
    number = np.float64 if plan.x64 else np.float32
    whole = ("result_code", "failed_at", "guard")
    arrays = {
        name: np.full(shape + size, -1 if name in whole else np.nan, np.int32 if name in whole else number)
        for name, size in plan.shapes.items()
    }
    arrays["result_code"] = np.full(shape, RAISED, np.int32)
    return _in_lanes(plan, i, arrays)


def _here(plan: Plan, pending: Sequence[int], workers: int, retries: int) -> Iterator[Outcome]:
    """Run tasks in threads of this process: XLA and the native engine release Python's lock."""
    programs = Programs(plan)

    def one(i: int) -> Outcome:
        for attempt in range(retries + 1):
            try:
                return i, programs.compute(i)
            except Exception as error:
                if attempt == retries:
                    return i, error
        raise AssertionError

    waiting, running = list(pending), set[Future[Outcome]]()
    with ThreadPoolExecutor(workers) as pool:
        try:
            # Submit no more tasks than can run, because tasks in the pool's own queue could not be cancelled.
            while waiting or running:
                while waiting and len(running) < workers:
                    running.add(pool.submit(one, waiting.pop(0)))
                finished, running = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    yield future.result()
        except KeyboardInterrupt:  # keep the results of the tasks that are running
            for future in running:
                yield future.result()
            raise


AHEAD = 4
"""Tasks that a cluster has for each of its threads: enough that no thread waits."""
CONNECT = 20.0
"""Seconds that a scheduler may take to answer at first."""
RECONNECT = 60.0
"""Seconds that a lost scheduler may take to come back."""


class _LostError(Exception):
    """The connection to the scheduler is lost."""


def _on_cluster(executor: Any, plan: Plan, pending: Sequence[int], retries: int) -> Iterator[Outcome]:
    """Run tasks on a Dask cluster. Results come in any order. The key of a task is a hash of its content.

    If a worker dies, its tasks run again elsewhere. If the scheduler is lost, wait until it is back, and submit all
    unfinished tasks again.
    """
    import cloudpickle
    from dask.distributed import Client

    address = executor if isinstance(executor, str) else None
    client: Any = executor if address is None else _connect(Client, address, CONNECT)
    # Packed twice, because a worker must set the precision before it unpickles arrays.
    parcel = cloudpickle.dumps((plan.options, cloudpickle.dumps((plan, _environment()))))
    left, losses = dict.fromkeys(pending), 0
    try:
        while left:
            try:
                for i, outcome in _submit(client, parcel, plan, list(left), retries):
                    del left[i]
                    losses = 0
                    yield i, outcome
            except _LostError:
                losses += 1
                if losses > retries + 1:
                    raise ClusterError(f"executor: lost the connection to the cluster{_KEPT}") from None
                client = _again(client, address)
    finally:
        if address is not None:
            client.close()


_KEPT = "; finished tasks are stored, and the same call continues from there"


def _connect(kind: Any, address: str, seconds: float) -> Any:
    try:
        return kind(address, timeout=seconds)
    except (OSError, ValueError) as error:
        raise ClusterError(f"executor: no Dask scheduler answers at {address!r} ({error})") from None


def _again(client: Any, address: str | None) -> Any:
    """A client of the lost scheduler, when it is back."""
    end = time.monotonic() + RECONNECT
    while time.monotonic() < end:
        if address is None and client.status == "running":
            return client
        if address is not None:
            try:
                fresh = _connect(type(client), address, 5)
            except ClusterError:
                pass
            else:
                client.close()
                return fresh
        time.sleep(0.5)
    raise ClusterError(f"executor: lost the connection to the cluster, for more than {RECONNECT:.0f} s{_KEPT}")


def _submit(client: Any, parcel: bytes, plan: Plan, pending: Sequence[int], retries: int) -> Iterator[Outcome]:
    from dask.distributed import as_completed

    waiting, attempts = deque(pending), dict.fromkeys(pending, 0)
    running: dict[Any, int] = {}
    # Sent as a task: if the worker that holds it dies, Dask computes it again.
    sent = client.submit(_same, parcel, key=f"selftune-{hashlib.sha256(parcel).hexdigest()}")
    queue = as_completed()

    def submit(i: int) -> None:
        # Dask remembers a failure by its key, so each attempt has another key.
        future = client.submit(_compute, sent, i, key=f"selftune-{plan.identity(plan.blocks[i])}-{attempts[i]}")
        running[future] = i
        queue.add(future)

    def fill() -> None:
        threads = sum(client.nthreads().values()) or 1
        while waiting and len(running) < AHEAD * threads:
            submit(waiting.popleft())

    try:
        fill()
        while running:
            future = next(queue)
            i = running.pop(future)
            if future.status == "finished":
                yield i, future.result()
            elif future.status == "error":
                error = future.exception()
                if isinstance(error, ClusterError):
                    raise error
                attempts[i] += 1
                if attempts[i] > retries:
                    yield i, error
                else:
                    submit(i)
            else:  # cancelled, or lost
                raise _LostError
            future.release()
            fill()
    except (CancelledError, OSError, RuntimeError) as error:
        if isinstance(error, ClusterError):
            raise
        raise _LostError from error


def _same(parcel: bytes) -> bytes:
    return parcel


@lru_cache(maxsize=4)
def _unpacked(parcel: bytes) -> Programs:
    """The programs of a parcel, unpacked once in each worker process."""
    import cloudpickle

    options, inside = cloudpickle.loads(parcel)
    try:
        with configured(options):
            plan, expected = cloudpickle.loads(inside)
    except Exception as error:
        raise ClusterError(
            f"executor: a worker cannot load the functions ({type(error).__name__}: {error}); install their modules on "
            "the workers (client.upload_file sends one), or define the functions in the script itself"
        ) from None
    here = _environment()
    if different := manifest.differing(here, expected):
        raise ClusterError(f"executor: a worker would compute different numbers: {'; '.join(different)} on the client")
    return Programs(plan)


_ONE = threading.Lock()


def _compute(parcel: bytes, i: int) -> dict[str, np.ndarray]:
    """The arrays of task i, in a worker."""
    with _ONE:  # only one thread unpacks
        programs = _unpacked(parcel)
    return programs.compute(i)


def _environment() -> dict[str, str]:
    """The versions and the machine, which also determine the numbers: they must be the same in every worker."""
    return {**manifest.versions(), **manifest.machine()}
