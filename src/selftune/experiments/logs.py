"""The log "selftune" while an experiment runs."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def errors_alone() -> Iterator[None]:
    """Log nothing below an error while the body runs; the level of the log is restored afterwards."""
    logger = logging.getLogger("selftune")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
