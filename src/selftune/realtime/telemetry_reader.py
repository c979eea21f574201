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


def follow(path: Path) -> Iterator[dict[str, Any] | None]:
    """Yield the steps in a file, and None whenever there is no more for now. It ends if the file is complete."""
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
                    yield json.loads(content[22:])
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
            if isinstance(data, bytes):
                if data[0] == 1:
                    yield json.loads(data[13:])
                continue
            message = json.loads(data)
            if message.get("op") == "advertise":
                wanted = [{"id": 1, "channelId": one["id"]} for one in message["channels"] if one["topic"] == TOPIC]
                if wanted:
                    client.send(json.dumps({"op": "subscribe", "subscriptions": wanted}))
