"""`export_fmu`: valid units of FMI 3.0 and 2.0 that FMPy simulates with the bits of the replay."""

import csv
import ctypes
import re
import shutil
import sys
import zipfile
from pathlib import Path

import fmpy
import numpy as np
import pytest
from fmpy.fmi2 import FMU2Slave
from fmpy.fmi3 import FMU3Slave

import selftune as st
from selftune.export import fmu_folder, si_units
from selftune.native.c import compilation
from tests.export.exports import STRICT_C, motor, run, with_context
from tests.native.test_export import start_of

DT = 0.001
UNITS = {2: "motor_fmi2.fmu", 3: "motor.fmu"}
SLAVES = {2: FMU2Slave, 3: FMU3Slave}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return motor().export_fmu(tmp_path_factory.mktemp("fmu") / "motor")


@pytest.fixture(scope="module")
def unpacked(folder, tmp_path_factory):
    """The content of both units, unpacked once: a library must not be loaded from two places."""
    places = {version: tmp_path_factory.mktemp(f"fmi{version}") for version in UNITS}
    for version, place in places.items():
        fmpy.extract(str(folder / UNITS[version]), str(place))
    return places


class Unit:
    """A unit in FMPy, by names of variables, in both versions of FMI."""

    def __init__(self, version, place):
        self.about = fmpy.read_model_description(str(place))
        self.references = {v.name: v.valueReference for v in self.about.modelVariables}
        self.version = version
        self.slave = SLAVES[version](
            guid=self.about.guid if version == 2 else self.about.instantiationToken,
            unzipDirectory=str(place),
            modelIdentifier="motor",
            instanceName="one",
        )
        self.slave.instantiate(loggingOn=False)

    def initialize(self):
        if self.version == 2:
            self.slave.setupExperiment(startTime=0.0)
        self.slave.enterInitializationMode()
        self.slave.exitInitializationMode()
        self.time = 0.0

    def set(self, name, value):
        boolean, real = isinstance(value, bool), ("setReal", "setFloat64")[self.version - 2]
        getattr(self.slave, "setBoolean" if boolean else real)([self.references[name]], [value])

    def get(self, name):
        integer = ("getInteger", "getInt32")[self.version - 2]
        real = ("getReal", "getFloat64")[self.version - 2]
        get = integer if name in ("code", "decisions") else real
        return getattr(self.slave, get)([self.references[name]])[0]

    def step(self, measured=0.0, reference=100.0, length=DT):
        self.set("measured.speed", measured)
        self.set("reference.speed", reference)
        self.slave.doStep(currentCommunicationPoint=self.time, communicationStepSize=length)
        self.time += length
        return self.get("u.voltage")


@pytest.fixture(params=sorted(UNITS))
def unit(request, unpacked):
    made = Unit(request.param, unpacked[request.param])
    yield made
    made.slave.terminate()
    made.slave.freeInstance()


def test_both_units_are_valid_and_give_the_bits_of_the_replay(folder):
    done = run(sys.executable, folder / "check.py")
    lines = ["motor.fmu: valid, 200 samples, the same bits", "motor_fmi2.fmu: valid, 200 samples, the same bits"]
    assert done.stdout.splitlines() == lines


@pytest.mark.parametrize("column", ["out:u.voltage", "out:theta.log_kp", "out:a_hat.load"])
def test_the_check_notices_one_bit(folder, tmp_path, column):
    copy = shutil.copytree(folder, tmp_path / "motor")
    with (copy / "replay.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    place = rows[0].index(column)
    rows[8][place] = repr(float(np.nextafter(np.float32(rows[8][place]), np.float32(np.inf))))
    (copy / "replay.csv").write_text("\n".join(map(",".join, rows)))
    done = run(sys.executable, copy / "check.py", fails=True)
    assert done.returncode == 1
    assert f"{column} differs at sample [7]" in done.stderr


def test_the_replay_agrees_with_xla(folder):
    """The recorded outputs come from the C. XLA computes the same step independently."""
    rows = list(csv.DictReader((folder / "replay.csv").read_text().splitlines()))
    agent = motor().agent(engine="xla")
    found, expected = [], []
    for row in rows:
        u = agent.act([float(row["in:measured.speed"])], reference=[float(row["in:reference.speed"])])
        found.append([float(row["out:u.voltage"]), float(row["out:theta.log_kp"]), float(row["out:a_hat.load"])])
        expected.append([float(u[0]), float(agent.theta["log_kp"]), float(agent.a_hat[0])])
    found, expected = np.array(found), np.array(expected)
    # The C is in float32, the agent of the tests in float64.
    np.testing.assert_array_less(np.abs(found - expected).max(0), 1e-3 * np.abs(expected).max(0))
    assert np.ptp(expected, axis=0).min() > 0


def test_people_see_names_units_and_descriptions(unpacked):
    for version, kind in {2: "Real", 3: "Float64"}.items():
        about = fmpy.read_model_description(str(unpacked[version]))
        variables = {v.name: v for v in about.modelVariables}
        u = variables["u.voltage"]
        assert (u.type, u.unit, u.causality, u.description) == (kind, "V", "output", "control: voltage")
        assert variables["learning"].causality == "parameter"
        assert variables["theta.log_kp"].start is not None
        assert float(about.defaultExperiment.stepSize) == DT
        assert next(unit for unit in about.unitDefinitions if unit.name == "rad/s").baseUnit.s == -1
    about = fmpy.read_model_description(str(unpacked[3]))
    assert float(about.coSimulation.fixedInternalStepSize) == DT


def test_learning_is_a_parameter(unit):
    unit.set("learning", False)
    unit.initialize()
    start = unit.get("theta.log_kp")
    for i in range(20):
        unit.step(measured=float(i))
    assert (unit.get("theta.log_kp"), unit.get("a_hat.load")) == (start, 0.0)
    unit.set("learning", True)
    unit.set("tuning", False)
    for i in range(20):
        unit.step(measured=5.0 * i)
    assert unit.get("theta.log_kp") == start
    assert unit.get("a_hat.load") != 0
    unit.set("tuning", True)
    for i in range(20):
        unit.step(measured=100.0 + i)
    assert unit.get("theta.log_kp") != start


def test_the_safe_control_is_a_parameter(unit):
    unit.initialize()
    first = unit.step()
    assert first > 5
    unit.set("safe_control.voltage", -3.5)
    unit.set("safe", True)
    theta = unit.get("theta.log_kp")
    assert (unit.step(measured=1.0), unit.step(measured=2.0)) == (-3.5, -3.5)
    assert unit.get("code") == 4
    assert unit.get("theta.log_kp") == theta
    unit.set("safe_control.voltage", -1000.0)
    assert unit.step(measured=2.0) == -24.0  # the actuator's limit
    unit.set("safe", False)
    assert unit.step(measured=2.0) > 5
    assert unit.get("code") == 0


def test_the_failsafe_gives_the_safe_control_until_the_switch_clears_it(unit):
    unit.set("safe_control.voltage", 1.5)
    unit.initialize()
    unit.step()
    blind = [unit.step(measured=float("nan")) for _ in range(201)]
    assert (unit.get("code"), blind[-1]) == (4, 1.5)
    assert unit.step(measured=0.0) == 1.5  # the latch holds
    unit.set("safe", True)
    unit.step(measured=0.0)
    unit.set("safe", False)
    assert unit.step(measured=0.0) > 5


def test_a_measurement_that_is_nan_is_refused(unit):
    unit.initialize()
    unit.step()
    assert np.isfinite(unit.step(measured=float("nan")))
    assert unit.get("code") == 2
    assert unit.get("decisions") & 1


def test_start_values_of_theta_and_a_hat(unit):
    unit.set("theta.log_kp", -1.0)
    unit.set("a_hat.load", 0.25)
    unit.initialize()
    assert (unit.get("theta.log_kp"), unit.get("a_hat.load")) == (-1.0, 0.25)
    with pytest.raises(Exception, match=r"fmi\dSet"):
        unit.set("theta.log_kp", -2.0)
    with pytest.raises(Exception, match=r"fmi\dSet"):
        unit.set("cost", 1.0)


def test_a_state_is_saved_and_restored(unit):
    """Also as bytes: a master that repeats a step gets the same bits."""
    get, put, free = ("getFMUState", "setFMUState", "freeFMUState")
    if unit.version == 2:
        get, put, free = ("getFMUstate", "setFMUstate", "freeFMUstate")
    unit.initialize()
    for i in range(10):
        unit.step(measured=float(i))
    saved = getattr(unit.slave, get)()
    serialized = unit.slave.serializeFMUState(saved) if unit.version == 3 else unit.slave.serializeFMUstate(saved)
    first = [unit.step(measured=10.0 + i) for i in range(10)]
    getattr(unit.slave, put)(saved)
    unit.time = 10 * DT
    assert [unit.step(measured=10.0 + i) for i in range(10)] == first
    getattr(unit.slave, free)(saved)
    again = (unit.slave.deserializeFMUState if unit.version == 3 else unit.slave.deSerializeFMUstate)(serialized)
    getattr(unit.slave, put)(again)
    unit.time = 10 * DT
    assert [unit.step(measured=10.0 + i) for i in range(10)] == first
    getattr(unit.slave, free)(again)


def test_one_sample_in_each_sampling_period(unit):
    """Two halves of a period make one sample, and five periods make five."""
    unit.initialize()
    halves = [unit.step(measured=1.0, length=DT / 2) for _ in range(8)]
    assert halves[0::2] == halves[1::2]
    assert len(set(halves)) == 4
    five = unit.step(measured=1.0, length=5 * DT)
    unit.slave.reset()
    unit.initialize()
    ones = [unit.step(measured=1.0) for _ in range(9)]
    assert ones[:4] == halves[0::2]
    assert five == ones[8]


def test_steps_that_cannot_be_are_refused(unit):
    """An infinite step would never return, and a step elsewhere in time would take no sample, or thousands at once."""
    with pytest.raises(Exception, match=r"fmi\dDoStep"):
        unit.slave.doStep(currentCommunicationPoint=0.0, communicationStepSize=DT)  # before the initialization
    unit.initialize()
    first = unit.step()
    for time, length in [(DT, np.inf), (DT, np.nan), (DT, 0.0), (0.0, DT), (5.0, DT), (np.nan, DT), (DT, 1e300)]:
        with pytest.raises(Exception, match=r"fmi\dDoStep"):
            unit.slave.doStep(currentCommunicationPoint=time, communicationStepSize=length)
        assert unit.get("u.voltage") == first
    assert unit.step(measured=1.0) != first


def test_two_instances_share_nothing(unit, unpacked):
    other = Unit(unit.version, unpacked[unit.version])
    unit.initialize()
    other.initialize()
    alone = [unit.step(measured=float(i)) for i in range(10)]
    unit.slave.reset()
    unit.initialize()
    pairs = [(unit.step(measured=float(i)), other.step(measured=-float(i), reference=-100.0)) for i in range(10)]
    assert [one for one, _ in pairs] == alone
    assert pairs[9][1] < 0
    other.slave.terminate()
    other.slave.freeInstance()


def test_contexts_of_every_kind_are_inputs(tmp_path):
    folder = with_context(st.export_fmu, tmp_path / "trees")
    assert "the same bits" in run(sys.executable, folder / "check.py").stdout
    about = fmpy.read_model_description(str(folder / "trees.fmu"))
    inputs = {v.name: v.type for v in about.modelVariables if v.causality == "input"}
    assert inputs == {
        "measured[1]": "Float64",
        "measured[2]": "Float64",
        "t_class[1]": "Float64",
        "t_class[2]": "Float64",
        "t_double[1]": "Float64",
        "mode[1]": "Int32",
    }


@pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc")
def test_the_sources_compile_without_a_warning(unpacked, tmp_path):
    for version, place in unpacked.items():
        sources = sorted((place / "sources").glob("*.c"))
        assert {path.name for path in sources} == {"motor.c", "motor_unit.c", f"fmi{version}.c"}
        run("gcc", *STRICT_C, "-fPIC", "-shared", *sources, "-o", tmp_path / f"unit{version}.so", "-lm")
        library = ctypes.CDLL(str(tmp_path / f"unit{version}.so"))
        assert getattr(library, f"fmi{version}GetVersion")


ONLY_MODEL_EXCHANGE = {
    *("fmi2EnterEventMode", "fmi2NewDiscreteStates", "fmi2EnterContinuousTimeMode", "fmi2CompletedIntegratorStep"),
    *("fmi2SetTime", "fmi2SetContinuousStates", "fmi2GetDerivatives", "fmi2GetEventIndicators"),
    *("fmi2GetContinuousStates", "fmi2GetNominalsOfContinuousStates"),
}


@pytest.mark.parametrize("version", sorted(UNITS))
def test_every_function_of_the_standard_is_there(unpacked, version):
    """FMPy brings the headers of the standard, which list the functions."""
    header = Path(fmpy.__file__).parent / "c-code" / f"fmi{version}FunctionTypes.h"
    names = set(re.findall(rf"\b(fmi{version}\w+)TYPE\b", header.read_text())) - ONLY_MODEL_EXCHANGE
    # FMI 2.0's header also lists earlier names, which the standard has not.
    names = {name for name in names if ("Slave" not in name and "Model" not in name) or version == 3}
    assert len(names) > 30
    here = fmu_folder.this_platform()
    directory = here if version == 3 else fmu_folder.PLATFORMS[here][0]
    library = ctypes.CDLL(str(unpacked[version] / "binaries" / directory / "motor.so"))
    assert [name for name in sorted(names) if not hasattr(library, name)] == []


def test_an_fmu_needs_a_period(tmp_path):
    controller, start = start_of("scalar")
    with pytest.raises(ValueError, match="dt: expected the sampling period in seconds, because this target needs it"):
        st.export_fmu(controller, tmp_path / "scalar", **start)
    with pytest.raises(ValueError, match="dt: expected a number of seconds > 0, got -1"):
        st.export_fmu(controller, tmp_path / "scalar", **start, dt=-1)
    with pytest.raises(ValueError, match=r"platforms: expected .* got 'x86_64-window' \(did you mean"):
        st.export_fmu(controller, tmp_path / "scalar", **start, dt=1.0, platforms=["x86_64-window"])
    assert not (tmp_path / "scalar").exists()


@pytest.mark.parametrize(
    ("unit", "plain", "powers"),
    [
        ("m/s²", "m/s2", {"m": 1, "s": -2}),
        ("N·m/(rad/s)", "N.m/(rad/s)", {"kg": 1, "m": 2, "s": -1, "rad": -1}),
        ("V/(A*s)/m", "V/(A*s)/m", {"kg": 1, "m": 1, "s": -4, "A": -2}),
        ("1/s", "1/s", {"s": -1}),
        ("kg·m^2", "kg.m2", {"kg": 1, "m": 2}),
        ("°C", "degC", None),
        ("(m", "(m", None),
        ("parsec", "parsec", None),
    ],
)
def test_units(unit, plain, powers):
    assert (si_units.plain(unit), si_units.exponents(unit)) == (plain, powers)


@pytest.mark.slow  # zig compiles the C library of Windows first
@pytest.mark.skipif(not compilation.has_zig(), reason="ziglang is not installed")
def test_binaries_for_other_platforms(tmp_path):
    folder = with_context(st.export_fmu, tmp_path / "trees", platforms=["x86_64-windows", "aarch64-linux"])
    for name, windows in {"trees.fmu": "x86_64-windows", "trees_fmi2.fmu": "win64"}.items():
        with zipfile.ZipFile(folder / name) as archive:
            assert archive.read(f"binaries/{windows}/trees.dll")[:2] == b"MZ"
            assert archive.read("binaries/aarch64-linux/trees.so")[18] == 0xB7


@pytest.mark.slow
def test_equal_controllers_give_equal_files(folder, tmp_path):
    again = motor().export_fmu(tmp_path / "motor")
    for path in folder.iterdir():
        assert (again / path.name).read_bytes() == path.read_bytes(), path.name
