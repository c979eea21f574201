"""ROS 2 bags, and MCAP files with messages of ROS 2 or with JSON."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from mcap.reader import NonSeekingReader, make_reader
from mcap.writer import MCAP0_MAGIC
from rosbags.highlevel import AnyReader
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from ..foundation.errors import InputError
from .samples import LONGEST, Columns, follow, number, path_of, stamp
from .ulog_files import no_topic

Messages = Iterator[tuple[int, Any]]
"""The time of each message in nanoseconds, and the message."""


class BagFolder:
    """A ROS 2 bag: a folder with `metadata.yaml`."""

    def __init__(self, path: Path):
        self.path = path
        self.notes: list[str] = []
        with self._reader() as reader:
            self._topics = sorted(reader.topics)

    @contextmanager
    def _reader(self) -> Iterator[AnyReader]:
        try:
            # Old bags have no definitions of their messages; then those of the latest ROS 2 are used.
            with AnyReader([self.path], default_typestore=get_typestore(Stores.LATEST)) as reader:
                yield reader
        except Exception as error:  # rosbags raises errors of many types for damaged bags
            raise InputError(f"{self.path}: not a ROS 2 bag, or a damaged one ({_about(error)})") from None

    def topics(self) -> list[str]:
        return self._topics

    def _messages(self, topic: str) -> Messages:
        with self._reader() as reader:
            connections = [one for one in reader.connections if one.topic == topic]
            for connection, when, raw in reader.messages(connections):
                yield when, reader.deserialize(raw, connection.msgtype)

    def read(
        self, topic: str, instance: int, fields: Sequence[str], time: str | None, seconds: float | None
    ) -> Columns:
        """Return fields of the messages of a topic."""
        if topic not in self._topics:
            raise no_topic(self.path, topic, self._topics)
        return _collect(self._messages(topic), topic, fields, time, seconds)


class McapFile:
    """An MCAP file, with messages of ROS 2 (`cdr`) or with JSON messages."""

    def __init__(self, path: Path):
        self.path = path
        self.notes: list[str] = []
        with path.open("rb") as file:
            if file.read(len(MCAP0_MAGIC)) != MCAP0_MAGIC:
                raise InputError(f"{path}: not an MCAP file")
        self._topics = sorted(self._channels())

    def _channels(self) -> set[str]:
        with self.path.open("rb") as file:
            try:
                summary = make_reader(file).get_summary()
            except Exception:  # mcap raises errors of many types for damaged files
                summary = None
        if summary is not None:
            return {channel.topic for channel in summary.channels.values()}
        return {channel.topic for _, channel, _ in self._records(None)}  # a file whose writer was stopped

    def topics(self) -> list[str]:
        return self._topics

    def _records(self, topics: list[str] | None) -> Iterator[Any]:
        """Yield schema, channel and message, up to the place where the file ends or is damaged."""
        count = 0
        with self.path.open("rb") as file:
            try:
                for record in NonSeekingReader(file, validate_crcs=True).iter_messages(topics, log_time_order=False):
                    count += 1
                    yield record
            except Exception as error:  # mcap raises errors of many types for damaged files
                if topics is not None:
                    self.notes.append(
                        f"{self.path.name} ends too early, or is damaged ({_about(error)}): the {count} messages of "
                        f"{', '.join(topics)} before that place are used."
                    )

    def _messages(self, topic: str) -> Messages:
        decoders: dict[int, Callable[[bytes], Any]] = {}
        records = sorted(self._records([topic]), key=lambda record: record[2].log_time)
        for i, (schema, channel, message) in enumerate(records):
            try:
                if channel.id not in decoders:
                    decoders[channel.id] = self._decoder(schema, channel)
                decoded = decoders[channel.id](message.data)
            except InputError:
                raise
            except Exception as error:
                raise InputError(f"{self.path}: {topic}: message {i} is damaged ({_about(error)})") from None
            yield message.log_time, decoded

    def _decoder(self, schema: Any, channel: Any) -> Callable[[bytes], Any]:
        if channel.message_encoding == "json":
            return json.loads
        if channel.message_encoding == "cdr" and schema is not None and schema.encoding == "ros2msg":
            store = get_typestore(Stores.EMPTY)
            store.register(get_types_from_msg(schema.data.decode(), schema.name))
            return lambda data: store.deserialize_cdr(data, schema.name)
        encoding = f"{channel.message_encoding}, {'no schema' if schema is None else schema.encoding}"
        raise InputError(
            f"{self.path}: {channel.topic}: expected messages of ROS 2 (cdr, ros2msg) or JSON, got {encoding}"
        )

    def read(
        self, topic: str, instance: int, fields: Sequence[str], time: str | None, seconds: float | None
    ) -> Columns:
        """Return fields of the messages of a topic."""
        if topic not in self._topics:
            raise no_topic(self.path, topic, self._topics)
        return _collect(self._messages(topic), topic, fields, time, seconds)


def _collect(messages: Messages, topic: str, fields: Sequence[str], time: str | None, seconds: float | None) -> Columns:
    paths = {field: path_of(field) for field in fields}
    clock = None if time is None else path_of(time)
    stamps: list[int] = []
    rows: list[list[float]] = []
    for when, message in messages:
        if clock is not None:
            assert time is not None
            when = stamp(follow(message, clock, time, topic), 1.0 if seconds is None else seconds, time, topic)
        stamps.append(when)
        rows.append([number(follow(message, steps, field, topic), field, topic) for field, steps in paths.items()])
        if not abs(stamps[-1]) < LONGEST * 1e9:
            raise InputError(f"{topic}: message {len(rows) - 1} has an impossible time, {stamps[-1] / 1e9:g} s")
    table = np.array(rows, float).reshape(len(rows), len(fields))
    return Columns(np.array(stamps, np.int64), dict(zip(fields, table.T, strict=True)))


def _about(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
