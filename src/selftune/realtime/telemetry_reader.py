"""Read an agent's telemetry while it runs: from its MCAP file, which grows, or from its websocket. It has no JAX."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ..foundation.errors import InputError
from .telemetry_writer import TOPIC

MAGIC = b"\x89MCAP0\r\n"
CHANNEL, MESSAGE, CHUNK, DATA_END = 4, 5, 6, 15
"""The kinds of records in an MCAP file."""
LONGEST = 2**24
"""A record of this many bytes is none of ours: they have some thousands."""


def follow(path: Path) -> Iterator[dict[str, Any] | None]:
    """Yield the steps in a file, and None whenever there is no more for now. It ends if the file is complete."""
    try:
        yield from _steps(path)
    except (ValueError, struct.error) as error:  # also text that is not UTF-8, and messages that are not JSON
        raise InputError(f"{path}: the file is damaged ({error})") from None


def _steps(path: Path) -> Iterator[dict[str, Any] | None]:
    with path.open("rb") as file:
        while len(start := file.read(len(MAGIC))) < len(MAGIC):
            file.seek(0)
            yield None
        if start != MAGIC:
            raise InputError(f"{path}: not an MCAP file")
        topics: dict[int, str] = {}
        while True:
            record = _next(file)
            if record is None:
                yield None
                continue
            kind, content = record
            if kind == CHANNEL:
                number, _, length = struct.unpack_from("<HHI", content)
                topics[number] = content[8 : 8 + length].decode()
            elif kind == MESSAGE:
                if topics.get(struct.unpack_from("<H", content)[0]) == TOPIC:
                    yield _step_of(content[22:])
            elif kind == CHUNK:
                raise InputError(f"{path}: expected the file of a selftune Telemetry, which has no chunks")
            elif kind == DATA_END:
                return


def _next(file: BinaryIO) -> tuple[int, bytes] | None:
    """Return the next record; None, without moving on, if it is not complete yet."""
    place = file.tell()
    head = file.read(9)
    if len(head) == 9:
        kind, length = struct.unpack("<BQ", head)
        if length > LONGEST:
            raise ValueError(f"a record of {length:,} bytes")
        content = file.read(length)
        if len(content) == length:
            return kind, content
    file.seek(place)
    return None


def listen(address: str) -> Iterator[dict[str, Any] | None]:
    """Yield the steps that a websocket sends, and None whenever it sends nothing for a while. It ends if the connection
    is closed."""
    from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI
    from websockets.sync.client import connect
    from websockets.typing import Subprotocol

    try:
        client = connect(address, subprotocols=[Subprotocol("foxglove.sdk.v1")], open_timeout=5)
    except (OSError, InvalidURI, InvalidHandshake, TimeoutError) as error:
        raise InputError(f"{address}: no telemetry there ({error})") from None
    with client:
        while True:
            try:
                data = client.recv(timeout=0.2)
            except TimeoutError:
                yield None
                continue
            except ConnectionClosed:
                return
            try:
                step, wanted = _received(data)
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                raise InputError(f"{address}: not the websocket of a selftune Telemetry ({error})") from None
            if step is not None:
                yield step
            if wanted:
                client.send(json.dumps({"op": "subscribe", "subscriptions": wanted}))


def _received(data: str | bytes) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """Return the step that a message has, or None, and the subscriptions to ask for."""
    if isinstance(data, bytes):
        return (_step_of(data[13:]) if data[0] == 1 else None), []
    message = json.loads(data)
    if message.get("op") != "advertise":
        return None, []
    return None, [{"id": 1, "channelId": one["id"]} for one in message["channels"] if one["topic"] == TOPIC]


def _step_of(content: bytes) -> dict[str, Any]:
    """Return a step; raise `ValueError` if a message is none."""
    step = json.loads(content)
    if not isinstance(step, dict) or not isinstance(step.get("guard"), str):
        raise ValueError("a message that is no step of an agent")
    if any(not isinstance(step.get(name), int | float) for name in ("step", "time")) or "cost" not in step:
        raise ValueError("a step without its number, its time or its cost")
    return step
