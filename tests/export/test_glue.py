"""`export_ros2`, `export_px4` and `export_crazyflie`: the code compiles against stubs, and a sample runs with them."""

import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import yaml

import selftune as st
from selftune import models, policies
from tests.export.exports import STRICT_C, motor, run
from tests.native.test_export import start_of

STUBS = Path(__file__).parent / "stubs"
STRICT_CPP = ("-std=c++17", "-Wall", "-Wextra", "-Werror")
FIELDS = {
    "ros2": {},
    "px4": {
        "inputs": ["vehicle_angular_velocity.xyz[0]", "vehicle_rates_setpoint.roll"],
        "outputs": ["vehicle_torque_setpoint.xyz[0]"],
    },
    "crazyflie": {"inputs": ["sensors->gyro.x", "setpoint->attitudeRate.roll"], "outputs": ["control->torque[0]"]},
}

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="no g++")


@pytest.fixture(scope="module")
def loop():
    return motor()


EXPORTS = {"px4": st.export_px4, "crazyflie": st.export_crazyflie}


@pytest.mark.parametrize("target", FIELDS)
def test_it_compiles_against_stubs_and_runs_with_them(loop, target, tmp_path):
    folder = getattr(loop, f"export_{target}")(tmp_path / "motor", **FIELDS[target])
    text = (folder / "README.md").read_text()
    assert "**Status: compiled, not run.**" in text
    assert "| `u.voltage` | output | V |" in text
    sources = [path for path in folder.rglob("*.c") if not path.name.endswith("_params.c")]
    programs = [*folder.rglob("*_controller.cpp"), *folder.rglob("*_module.cpp"), *(STUBS / target).glob("main.*")]
    objects = []
    for source in [*sources, *programs]:
        objects.append(tmp_path / f"{source.name}.o")
        includes = (f"-I{STUBS / target}", f"-I{source.parent}")
        if source.suffix == ".c":
            strict = [flag for flag in STRICT_C if flag != "-Wpedantic" or "controller" not in source.name]
            run("gcc", *strict, *includes, "-c", source, "-o", objects[-1])
        else:
            run("g++", *STRICT_CPP, *includes, "-c", source, "-o", objects[-1])
    run("g++", *objects, "-o", tmp_path / "program", "-lm")
    run(tmp_path / "program")


def test_the_package_of_ros2_is_complete(loop, tmp_path):
    folder = loop.export_ros2(tmp_path / "motor")
    assert callable(st.export_ros2)
    package = ElementTree.parse(folder / "package.xml").getroot()
    assert package.findtext("name") == "motor"
    plugin = ElementTree.parse(folder / "motor_plugin.xml").getroot().find("class")
    assert plugin is not None
    assert plugin.get("base_class_type") == "controller_interface::ControllerInterface"
    settings = yaml.safe_load((folder / "config" / "motor.yaml").read_text())
    assert settings["controller_manager"]["ros__parameters"]["update_rate"] == 1000
    assert settings["motor_controller"]["ros__parameters"]["safe_control"] == [0.0]
    compile((folder / "launch" / "motor.launch.py").read_text(), "launch", "exec")
    assert "TEST(motor, is_a_plugin)" in (folder / "test" / "test_motor.cpp").read_text()


def test_the_sampling_function_on_the_page_compiles(loop, tmp_path):
    folder = loop.export_c(tmp_path / "motor_c")
    page = Path(__file__).parents[2] / "docs" / "export" / "c.md"
    (folder / "page.c").write_text(page.read_text().partition("```c\n")[2].partition("```")[0])
    run("gcc", *STRICT_C, "-c", folder / "page.c", "-o", tmp_path / "page.o")


def test_an_arm_has_the_interfaces_of_ros2_control(tmp_path):
    link = models.Link("waist", axis=(0.0, -1.0, 0.0), mass=2.0, center=(0.0, 0.0, -0.3))
    arm = models.RobotArm(models.RigidBody((link,), tool_position=(0.0, 0.0, -0.6)), torque_limits=20.0)
    folder = st.Loop(arm, policies.GravityPD()).export_ros2(tmp_path / "arm")
    settings = yaml.safe_load((folder / "config" / "arm.yaml").read_text())["arm_controller"]["ros__parameters"]
    assert settings["state_interfaces"] == ["waist/position", "waist/velocity", "waist/effort"]
    assert settings["command_interfaces"] == ["waist/effort"]


@pytest.mark.parametrize(
    ("target", "change", "message"),
    [
        ("px4", {"inputs": ["vehicle_status.x"]}, "inputs: expected 2 fields, for measured.speed, reference.speed"),
        ("px4", {"outputs": ["system('rm')"]}, "outputs: expected fields such as 'vehicle_angular_velocity"),
        ("crazyflie", {"outputs": ["control->x; y"]}, "outputs: expected fields such as 'control->torque"),
        ("crazyflie", {"dt": 0.0015}, "dt: expected a multiple of 0.001 s"),
    ],
)
def test_wrong_fields_are_refused(loop, target, change, message, tmp_path):
    if "dt" in change:
        controller, start = start_of("scalar")
        with pytest.raises(ValueError, match=message):
            EXPORTS[target](
                controller, tmp_path / "out", **start, **change, inputs=["sensors->gyro.x"], outputs=["control->thrust"]
            )
        return
    with pytest.raises(ValueError, match=message):
        getattr(loop, f"export_{target}")(tmp_path / "motor", **FIELDS[target] | change)
