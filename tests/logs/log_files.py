"""The same recording as files of all formats that `read_log` reads."""

import json
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from mcap.writer import Writer as McapWriter
from rosbags.rosbag2 import StoragePlugin
from rosbags.rosbag2 import Writer as BagWriter
from rosbags.typesys import Stores, get_typestore

START = 1_700_000_000_000_000_000
"""The time of the first sample, in nanoseconds."""


def recording(rows=300, dt=0.01):
    """Times in nanoseconds; an angle in degrees, a torque in N·m, and a wanted angle in degrees, which moves rarely."""
    k = np.arange(rows)
    angle, torque = 20 * np.sin(0.05 * k), np.cos(0.03 * k)
    return START + (k * round(dt * 1e9)), angle, torque, 5.0 * (k // 100)


def csv(path, time, angle, torque, wanted):
    lines = ["ms,angle,torque,wanted"]
    lines += [
        f"{(t - START) / 1e6!r},{a!r},{u!r},{r!r}" for t, a, u, r in zip(time, angle, torque, wanted, strict=True)
    ]
    path.write_text("\n".join(lines).replace("np.float64(", "").replace(")", ""))
    return "", "ms"


def parquet(path, time, angle, torque, wanted):
    table = {"ms": (time - START) / 1e6, "angle": angle, "torque": torque, "wanted": wanted, "note": ["x"] * len(time)}
    pq.write_table(pa.table(table), path)


def bag(path, time, angle, torque, wanted, plugin=StoragePlugin.SQLITE3, stamp_late=0):
    """A ROS 2 bag. The header's stamp is the given time; the bag records each message `stamp_late` later."""
    store = get_typestore(Stores.ROS2_HUMBLE)
    joints, command, header, stamp = (
        store.types[f"{name}"]
        for name in (
            "sensor_msgs/msg/JointState",
            "std_msgs/msg/Float64MultiArray",
            "std_msgs/msg/Header",
            "builtin_interfaces/msg/Time",
        )
    )
    layout = store.types["std_msgs/msg/MultiArrayLayout"]([], 0)
    with BagWriter(path, version=9, storage_plugin=plugin) as writer:
        topics = {
            "/joint_states": joints.__msgtype__,
            "/effort": command.__msgtype__,
            "/wanted": command.__msgtype__,
        }
        channels = {name: writer.add_connection(name, kind, typestore=store) for name, kind in topics.items()}

        def write(topic, when, message):
            writer.write(channels[topic], when, store.serialize_cdr(message, topics[topic]))

        before = None
        for t, a, u, r in zip(time.tolist(), angle, torque, wanted, strict=True):
            at = header(stamp(int(t // 10**9), int(t % 10**9)), "base")
            empty = np.zeros(0)
            write("/joint_states", t + stamp_late, joints(at, ["elbow"], np.array([a]), empty, empty))
            write("/effort", t + stamp_late, command(layout, np.array([u])))
            if r != before:
                write("/wanted", t + stamp_late, command(layout, np.array([r])))
            before = r


def mcap_json(path, time, angle, torque, wanted, encoding="json", **options):
    with path.open("wb") as file:
        writer = McapWriter(file, **options)
        writer.start()
        schema = writer.register_schema("row", "jsonschema", json.dumps({"type": "object"}).encode())
        channel = writer.register_channel("/rows", encoding, schema)
        for t, a, u, r in zip(time.tolist(), angle, torque, wanted, strict=True):
            values = {"angle": a, "torque": [u] if np.isfinite(u) else [None], "wanted": {"angle": r}}
            writer.add_message(channel, t, json.dumps(values).encode(), t)
        writer.finish()


def ulog(path, time, angle, torque, wanted):
    """A ULog file, written by the specification of its format: two messages, and a second instance of the first."""

    def message(kind, data):
        return struct.pack("<HB", len(data), ord(kind)) + data

    parts = [b"ULog\x01\x12\x35\x01" + struct.pack("<Q", 0), message("B", bytes(40))]
    for text in ("joint:uint64_t timestamp;float[2] angle;", "motor:uint64_t timestamp;double torque;double wanted;"):
        parts.append(message("F", text.encode()))
    for instance, number, name in ((0, 0, "joint"), (0, 1, "motor"), (1, 2, "joint")):
        parts.append(message("A", struct.pack("<BH", instance, number) + name.encode()))
    for t, a, u, r in zip(((time - START) // 1000).tolist(), angle, torque, wanted, strict=True):
        parts.append(message("D", struct.pack("<HQff", 0, t, 0.0, a)))
        parts.append(message("D", struct.pack("<HQff", 2, t, 0.0, -a)))
        parts.append(message("D", struct.pack("<HQdd", 1, t, u, r)))
    path.write_bytes(b"".join(parts))
