"""The executor that calls a function on a Dask cluster."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, nullcontext
from functools import lru_cache, partial
from typing import Any

from ..foundation import arguments, jax_settings
from ..foundation.errors import ArgumentError
from ..foundation.executors import ExecutorError, Receive, run_in_pool
from ..storage import manifest

AHEAD = 4
"""Tasks that a cluster has for each of its threads: enough that no thread waits."""
CONNECT = 20.0
"""Seconds that a scheduler may take to answer."""


class Cluster:
    """A Dask cluster. Dask calls a function again if it raises an error, up to `retries` times, or if its worker dies.

    If the connection to the scheduler is lost, `run` raises `ExecutorError`.
    """

    def __init__(self, scheduler: Any, *, retries: int = 0):
        """`scheduler`: the address of a scheduler, or a client of one."""
        try:
            from dask.distributed import Client
        except ImportError as error:
            raise ExecutorError(f"executor: a cluster needs Dask ({error}); pip install 'selftune[cluster]'") from None
        if not isinstance(scheduler, (str, Client)):
            expected = "None, the address of a Dask scheduler or a Client"
            raise ArgumentError("executor", expected, arguments.describe(scheduler))
        self.scheduler: Any = scheduler
        self.retries = retries

    def run(self, function: Callable[[Any], Any], items: Sequence[Any], receive: Receive) -> None:
        import cloudpickle

        # Pickled twice, because a worker must apply the settings of JAX before it unpickles arrays.
        parcel = cloudpickle.dumps((jax_settings.current(), cloudpickle.dumps((function, _environment()))))
        with _connect(self.scheduler) if isinstance(self.scheduler, str) else nullcontext(self.scheduler) as client:
            # The parcel is the result of a task: if the worker that holds it dies, Dask computes it again.
            parcel_there = client.submit(_same, parcel, pure=False)
            pool = client.get_executor(pure=False, retries=self.retries)

            def submit(item: Any) -> Future[Any]:
                with _lost_if(Exception):
                    return pool.submit(_call, parcel_there, item)

            def room() -> int:
                with _lost_if(Exception):
                    return AHEAD * (sum(client.nthreads().values()) or 1)

            def unless_lost(result: Callable[[], Any]) -> Any:
                with _lost_if(CancelledError):
                    return result()

            run_in_pool(submit, items, lambda item, result: receive(item, partial(unless_lost, result)), room=room)


def _connect(address: str) -> Any:
    from dask.distributed import Client

    try:
        return Client(address, timeout=CONNECT)
    except TypeError as error:  # a tls:// address without certificates
        raise ExecutorError(
            f"executor: {address!r} needs certificates ({error}); set Dask's distributed.comm.tls.ca-file and "
            "distributed.comm.tls.client, or give a Client with a Security"
        ) from None
    except (OSError, ValueError) as error:
        raise ExecutorError(f"executor: no Dask scheduler answers at {address!r} ({error})") from None


@contextmanager
def _lost_if(error: type[Exception]) -> Iterator[None]:
    """A context in which this error means that the connection to the scheduler is lost."""
    try:
        yield
    except error as cause:
        raise ExecutorError(
            "executor: lost the connection to the cluster; finished tasks are stored, and the same call continues from "
            "there"
        ) from cause


def _same(parcel: bytes) -> bytes:
    return parcel


@lru_cache(maxsize=4)
def _unpacked(parcel: bytes) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """JAX's settings and the function in a parcel, unpickled once in each worker process."""
    import cloudpickle

    settings, pickled = cloudpickle.loads(parcel)
    try:
        with jax_settings.applied(settings):
            function, expected = cloudpickle.loads(pickled)
    except Exception as error:
        raise ExecutorError(
            f"executor: a worker cannot load the functions ({type(error).__name__}: {error}); install their modules on "
            "the workers (client.upload_file sends one), or define the functions in the script itself"
        ) from None
    if different := manifest.differing(_environment(), expected):
        raise ExecutorError(f"executor: a worker would compute different numbers: {'; '.join(different)} on the client")
    return settings, function


_UNPACKING = threading.Lock()


def _call(parcel: bytes, item: Any) -> Any:
    """Call the function of a parcel, in a worker."""
    with _UNPACKING:  # only one thread unpacks
        settings, function = _unpacked(parcel)
    with jax_settings.applied(settings):
        return function(item)


def _environment() -> dict[str, str]:
    """The versions and the machine, which also determine the numbers: they must be the same in every worker."""
    return {**manifest.versions(), **manifest.machine()}
