"""`read_log`: the same recording from files of all formats; units, delays, gaps, and mistakes."""

import re

import numpy as np
import pytest
from mcap.writer import CompressionType
from rosbags.rosbag2 import StoragePlugin

import selftune as st
from selftune.foundation.errors import InputError
from tests.logs import log_files

UNITS = {"measurement": ["rad"], "u": ["N·m"], "reference": ["rad"]}
DT = 0.01


def mapping(angle="angle", torque="torque", wanted="wanted", *, topics=("", "", ""), **others):
    return {
        "measurement": [{"field": angle, "unit": "deg", "topic": topics[0]}],
        "u": [{"field": torque, "unit": "Nm", "topic": topics[1]}],
        "reference": [{"field": wanted, "unit": "deg", "topic": topics[2]}],
        **others,
    }


TABLE = mapping(time="ms", time_unit="ms")
ROS = mapping("position[0]", "data[0]", "data[0]", topics=("/joint_states", "/effort", "/wanted"))
JSON = mapping("angle", "torque[0]", "wanted.angle", topics=("/rows",) * 3)
PX4 = mapping("angle[1]", "torque", "wanted", topics=("joint", "motor", "motor"))
FORMATS = {
    "log.csv": (log_files.csv, TABLE),
    "log.parquet": (log_files.parquet, TABLE),
    "bag": (log_files.bag, ROS),
    "mcap-bag": (lambda *a: log_files.bag(*a, plugin=StoragePlugin.MCAP), ROS),
    "log.mcap": (log_files.mcap_json, JSON),
    "log.ulg": (log_files.ulog, PX4),
}


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_gives_the_same_rows(name, tmp_path):
    write, mapped = FORMATS[name]
    rows = log_files.recording()
    write(tmp_path / name, *rows)
    log = st.read_log(tmp_path / name, mapped, dt=DT, units=UNITS)
    # The file has floats of 32 bits in one format.
    tolerance = {"rtol": 1e-6, "atol": 1e-7} if name == "log.ulg" else {"rtol": 1e-12, "atol": 1e-12}
    np.testing.assert_allclose(log.measurement[:, 0], np.radians(rows[1]), **tolerance)
    np.testing.assert_array_equal(log.u[:, 0], rows[2])
    np.testing.assert_allclose(log.reference[:, 0], np.radians(rows[3]), rtol=1e-12)
    np.testing.assert_allclose(log.time, DT * np.arange(300), atol=1e-9)
    assert log.notes == ()


def test_a_bare_mcap_file_of_a_bag(tmp_path):
    rows = log_files.recording()
    log_files.bag(tmp_path / "bag", *rows, plugin=StoragePlugin.MCAP)
    (file,) = (tmp_path / "bag").glob("*.mcap")
    log = st.read_log(file, ROS, dt=DT, units=UNITS)
    np.testing.assert_allclose(log.measurement[:, 0], np.radians(rows[1]), rtol=1e-12, atol=1e-12)


def test_an_mcap_file_whose_writer_was_stopped(tmp_path):
    rows = log_files.recording()
    log_files.mcap_json(tmp_path / "log.mcap", *rows, chunk_size=2000)
    whole = (tmp_path / "log.mcap").read_bytes()
    (tmp_path / "log.mcap").write_bytes(whole[: len(whole) // 2])
    log = st.read_log(tmp_path / "log.mcap", JSON, dt=DT, units=UNITS)
    assert 50 < len(log) < 300
    np.testing.assert_array_equal(log.u[:, 0], rows[2][: len(log)])


def test_the_clock_of_the_header_and_a_second_instance(tmp_path):
    rows = log_files.recording()
    log_files.bag(tmp_path / "bag", *rows, stamp_late=40_000_000)
    stamped = {"measurement": ROS["measurement"], "u": [{"field": "position[0]", "topic": "/joint_states"}]}
    log = st.read_log(tmp_path / "bag", {**stamped, "reference": [{"value": 1.5}], "time": "header.stamp"}, dt=DT)
    np.testing.assert_allclose(log.u[:, 0], rows[1])
    assert np.all(log.reference == 1.5)
    log_files.ulog(tmp_path / "log.ulg", *rows)
    second = {**PX4, "measurement": [{"field": "angle[1]", "topic": "joint", "instance": 1}]}
    log = st.read_log(tmp_path / "log.ulg", second, dt=DT)
    np.testing.assert_allclose(log.measurement[:, 0], -rows[1], rtol=1e-6, atol=1e-6)


def test_resampling_and_signals_with_their_own_times(tmp_path):
    time, angle, torque, wanted = log_files.recording(rows=600, dt=0.004)
    log_files.bag(tmp_path / "bag", time, angle, torque, wanted)
    log = st.read_log(tmp_path / "bag", ROS, dt=DT, units=UNITS)
    assert np.all(np.isclose(np.diff(log.time), DT))
    exact = np.interp(log.time, (time - time[0]) / 1e9, np.radians(angle))
    np.testing.assert_allclose(log.measurement[:, 0], exact, atol=1e-12)
    # Row 1 lasts from 10 to 20 ms: samples 2 (from 8 ms), 3 and 4 hold for 2, 4 and 4 ms.
    np.testing.assert_allclose(log.u[1, 0], np.dot(torque[2:5], [0.2, 0.4, 0.4]), rtol=1e-5)
    assert any("Resampled to dt = 0.01 s" in note for note in log.notes)
    assert any("2.5 samples in a period" in note for note in log.notes)


def test_delay_and_lag(tmp_path):
    rows = log_files.recording()
    log_files.csv(tmp_path / "log.csv", *rows)
    late = {**TABLE, "measurement": [{"field": "angle", "delay": 3 * DT}, {"field": "torque", "lag": 0.02}]}
    log = st.read_log(tmp_path / "log.csv", late, dt=DT)
    np.testing.assert_allclose(log.measurement[:200, 0], rows[1][3:203], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(log.u[:200, 0], rows[2][:200])
    filtered = [rows[2][0]]
    for u in rows[2][:199]:
        filtered.append(filtered[-1] + (1 - np.exp(-DT / 0.02)) * (u - filtered[-1]))
    np.testing.assert_allclose(log.measurement[:200, 1], filtered, rtol=1e-9, atol=1e-9)
    assert any("delay of 0.03 s is removed" in note for note in log.notes)


def test_gaps(tmp_path):
    rows = log_files.recording(rows=500)
    kept = np.ones(500, bool)
    kept[[100, 101, 300, 301, 302, 303, 304, 305, 306]] = False  # the second gap is longer than 5 periods
    angle = rows[1].copy()
    angle[50] = np.nan
    log_files.csv(tmp_path / "log.csv", *(row[kept] for row in (rows[0], angle, *rows[2:])))
    log = st.read_log(tmp_path / "log.csv", TABLE, dt=DT, units=UNITS)
    assert len(log) == 300
    np.testing.assert_allclose(log.measurement[:, 0], np.radians(rows[1][:300]), atol=3e-3)
    np.testing.assert_allclose(log.measurement[102:, 0], np.radians(rows[1][102:300]), atol=1e-9)
    text = " ".join(log.notes)
    assert "1 of 491 samples are NaN" in text
    assert "1 gap in the log (2.99 to 3.07 s)" in text
    assert "300 of 500 rows" in text
    assert "3 rows between samples" in text


def test_a_table_without_a_mapping_and_without_times(tmp_path):
    rng = np.random.default_rng(0)
    log = st.PlantLog(rng.normal(size=(30, 2)), rng.normal(size=30), rng.normal(size=(30, 3)))
    log.write_csv(tmp_path / "log.csv")
    again = st.read_log(tmp_path / "log.csv", dt=DT)
    for name in ("measurement", "u", "reference"):
        np.testing.assert_array_equal(getattr(again, name), getattr(log, name))
    assert again.time is None


def test_jitter_keeps_the_times_of_the_measurement(tmp_path):
    rows = log_files.recording()
    uneven = rows[0] + np.random.default_rng(0).integers(-4_000_000, 4_000_000, 300)
    log_files.csv(tmp_path / "log.csv", uneven, *rows[1:])
    log = st.read_log(tmp_path / "log.csv", TABLE, dt=DT, jitter=True)
    np.testing.assert_allclose(log.time, (uneven - uneven[0]) / 1e9, atol=1e-9)
    np.testing.assert_array_equal(log.measurement[:, 0], rows[1])


def test_mistakes_say_what_to_do(tmp_path):
    rows = log_files.recording()
    for name, (write, _) in FORMATS.items():
        write(tmp_path / name, *rows)
    back = rows[0].copy()
    back[120:] -= 500_000_000
    log_files.csv(tmp_path / "back.csv", back, *rows[1:])
    log_files.csv(tmp_path / "nan.csv", rows[0], np.full(300, np.nan), *rows[2:])
    log_files.csv(tmp_path / "slow.csv", rows[0][::20], *(row[::20] for row in rows[1:]))
    log_files.mcap_json(tmp_path / "odd.mcap", *rows, encoding="protobuf")
    log_files.mcap_json(tmp_path / "none.mcap", *(row[:0] for row in rows))
    (tmp_path / "empty.csv").write_text("ms,angle,torque,wanted\n")
    (tmp_path / "text.csv").write_text("ms,angle,torque,wanted\n0,a,1,1\n")
    (tmp_path / "short.csv").write_text("ms,angle,torque,wanted\n0,1,1,1\n10,1\n")
    (tmp_path / "bad.ulg").write_text("no ULog")
    (tmp_path / "bad.mcap").write_text("no MCAP")
    (tmp_path / "bad.parquet").write_text("no Parquet")
    (tmp_path / "folder").mkdir()
    (tmp_path / "old.bag").touch()
    (tmp_path / "log.txt").touch()
    feet = {**TABLE, "measurement": [{"field": "angle", "unit": "feet"}]}
    for name, mapped, message in [
        ("no.csv", TABLE, "no such file"),
        ("log.txt", TABLE, r"expected a file \.csv, \.parquet, \.ulg or \.mcap"),
        ("old.bag", ROS, "rosbags-convert"),
        ("empty.csv", TABLE, "a line for each step"),
        ("text.csv", TABLE, "row 0: expected numbers"),
        ("short.csv", TABLE, "row 1: expected 4 numbers, one for each column, got 2"),
        ("log.csv", mapping("angel", time="ms"), r"no column 'angel' \(did you mean angle\?\); got ms, angle"),
        ("log.csv", None, "a column measurement, or columns measurement_0"),
        ("log.csv", ROS, "a table has no topics"),
        ("log.csv", feet, "expected the loop's unit rad; these are converted: deg, got feet"),
        ("back.csv", TABLE, r"the clock goes back by 0.49 s after sample 119, which is 1.19 s after the first"),
        ("nan.csv", TABLE, "all 300 samples are NaN"),
        ("slow.csv", TABLE, "0.2 s apart, which is 20 periods"),
        (
            "bag",
            {**ROS, "u": [{"field": "data[0]", "topic": "/efort"}]},
            r"mean /effort\?\); the topics are /effort, /j",
        ),
        ("bag", mapping("speed", topics=ROS_TOPICS), "no speed; the fields there are header, name, position"),
        ("bag", mapping("position[3]", topics=ROS_TOPICS), r"there are 1 numbers, from \[0\] to \[0\]"),
        ("bag", mapping("header", topics=ROS_TOPICS), "header is not a number"),
        ("bag", mapping("a-b", topics=ROS_TOPICS), "expected a path such as"),
        ("bag", None, "expected a mapping from topics to signals; the topics are /effort, /joint_states, /wanted"),
        ("folder", ROS, "not a ROS 2 bag"),
        ("log.mcap", ROS, "there is no topic /joint_states"),
        ("odd.mcap", JSON, r"expected messages of ROS 2 \(cdr, ros2msg\) or JSON, got protobuf"),
        ("none.mcap", JSON, "the log has no samples"),
        ("log.ulg", mapping(topics=("motors", "motor", "motor")), r"no topic motors \(did you mean motor\?\)"),
        ("log.ulg", mapping(topics=("joint", "motor", "motor")), r"joint has no angle .*; the fields are"),
        ("bad.ulg", PX4, "not a ULog file"),
        ("bad.mcap", JSON, "not an MCAP file"),
        ("bad.parquet", TABLE, "not a Parquet file"),
    ]:
        with pytest.raises((InputError, st.ArgumentError), match=message):
            st.read_log(tmp_path / name, mapped, dt=DT, units=UNITS)
    with pytest.raises(st.ArgumentError, match="measurement: expected 2 signals of the log, as the loop has, got 1"):
        st.read_log(tmp_path / "log.csv", TABLE, dt=DT, units={"measurement": ["rad", "rad/s"]})


def damaged(whole, draw):
    """The bytes of a file, cut, changed in one bit, with zeros or noise in the middle, or with noise at the end."""
    content, at = bytearray(whole), int(draw.integers(len(whole)))
    kind = draw.integers(5)
    if kind == 0:
        return content[:at]
    if kind == 1:
        content[at] ^= 1 << int(draw.integers(8))
    elif kind == 2:
        content[at : at + 16] = bytes(16)
    elif kind == 3:
        content[at : at + 8] = draw.bytes(8)
    else:
        content[at:] = draw.bytes(min(len(whole) - at, 2000))
    return content


@pytest.mark.parametrize("name", FORMATS)
def test_a_damaged_file_gives_rows_or_a_message(name, tmp_path, capsys):
    """Never an error of the libraries that read the formats, which the command would show as a traceback."""
    write, mapped = FORMATS[name]
    write(tmp_path / name, *log_files.recording())
    draw = np.random.default_rng(0)
    files = [path for path in [tmp_path / name, *sorted((tmp_path / name).rglob("*"))] if path.is_file()]
    refused = 0
    for path in files:
        whole = path.read_bytes()
        for _ in range(25):
            path.write_bytes(damaged(whole, draw))
            try:
                log = st.read_log(tmp_path / name, mapped, dt=DT, units=UNITS)
            except (InputError, st.ArgumentError):
                refused += 1
            else:
                assert all(np.isfinite(part).all() for part in (log.measurement, log.u, log.reference))
        path.write_bytes(whole)
    assert refused > 0
    assert capsys.readouterr().out == ""


def test_a_damaged_file_that_is_read_in_part_says_so(tmp_path):
    rows = log_files.recording()
    log_files.mcap_json(tmp_path / "log.mcap", *rows, chunk_size=2000)
    log_files.ulog(tmp_path / "log.ulg", *rows)
    for name, mapped, expected in [
        ("log.mcap", JSON, r"ends too early, or is damaged .* messages of /rows before that place are used"),
        ("log.ulg", PX4, "is damaged: parts of it cannot be read"),
    ]:
        whole = (tmp_path / name).read_bytes()
        assert st.read_log(tmp_path / name, mapped, dt=DT).notes == ()
        middle = len(whole) // 2
        (tmp_path / name).write_bytes(whole[:middle] + 1000 * b"\xff" + whole[middle + 1000 :])
        log = st.read_log(tmp_path / name, mapped, dt=DT)
        assert any(re.search(expected, note) for note in log.notes), log.notes


def test_a_number_that_changed_in_an_mcap_file_is_noticed(tmp_path):
    log_files.mcap_json(
        tmp_path / "log.mcap", *log_files.recording(), chunk_size=2000, compression=CompressionType.NONE
    )
    whole = (tmp_path / "log.mcap").read_bytes()
    at = whole.index(b'"angle": ', len(whole) // 2) + len(b'"angle": 1')
    assert whole[at : at + 1] in b"0123456789."
    (tmp_path / "log.mcap").write_bytes(whole[:at] + b"9" + whole[at + 1 :])
    log = st.read_log(tmp_path / "log.mcap", JSON, dt=DT)
    assert 50 < len(log) < 300
    assert "is damaged" in log.notes[0]


def test_impossible_times_do_not_fill_the_memory(tmp_path):
    rows = log_files.recording()
    for last, message in [
        (10**20, "row 299 has an impossible time"),
        (2 * 10**18, "expected at most 20,000,000 periods"),
    ]:
        log_files.csv(tmp_path / "log.csv", np.append(rows[0][:-1].astype(float), last), *rows[1:])
        with pytest.raises(InputError, match=message):
            st.read_log(tmp_path / "log.csv", TABLE, dt=DT)


def test_a_table_as_excel_writes_it(tmp_path):
    rows = log_files.recording()
    log_files.csv(tmp_path / "log.csv", *rows)
    text = (tmp_path / "log.csv").read_text()
    (tmp_path / "log.csv").write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode() + b"\r\n\r\n")
    np.testing.assert_array_equal(st.read_log(tmp_path / "log.csv", TABLE, dt=DT).u[:, 0], rows[2])


ROS_TOPICS = ("/joint_states", "/effort", "/wanted")


def test_a_mapping_in_toml(tmp_path):
    path = tmp_path / "map.toml"
    path.write_text('max_gap = 3\n[[measurement]]\nfield = "a"\n[[u]]\nfield = "b"\n[[reference]]\nvalue = 0\n')
    made = st.LogMapping.from_toml(path)
    assert made == st.LogMapping((st.LogSignal("a"),), (st.LogSignal("b"),), (st.LogSignal(value=0),), max_gap=3)
    for old, new, message in [
        ('field = "a"', 'feild = "a"', r"measurement 0: expected the keys .*, got feild \(did you mean field\?\)"),
        ('field = "a"', 'field = "a"\nvalue = 1', "measurement 0, field: expected the name of a field, or a constant"),
        ('field = "a"', 'field = "a"\nscale = "2"', "measurement 0, scale: expected a finite number"),
        ('[[u]]\nfield = "b"', "", r"u: expected a table \[\[u\]\] for each signal"),
        ('field = "b"', "value = 1", "u: expected a signal of the log, got constants only"),
        ("max_gap = 3", "max_gap = 0.5", "max_gap: expected a number of periods >= 1"),
        ("max_gap = 3", 'time_unit = "h"', "time_unit: expected one of s, ms, us, ns"),
        ("max_gap = 3", "max_gap =", "Invalid value"),
    ]:
        path.write_text(
            'max_gap = 3\n[[measurement]]\nfield = "a"\n[[u]]\nfield = "b"\n[[reference]]\nvalue = 0\n'.replace(
                old, new
            )
        )
        with pytest.raises(InputError, match=message):
            st.LogMapping.from_toml(path)
