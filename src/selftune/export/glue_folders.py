"""`export_ros2`, `export_px4` and `export_crazyflie`: the code between a controller and a robot's software.

This code is compiled in the tests against stub headers, and not run. The README of each folder says so.
"""

import os
import re
from collections.abc import Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Unpack

from ..control.controller import Controller
from ..foundation import arguments
from ..foundation.errors import ArgumentError
from ..native.c.templates import fill
from . import sampled_unit
from .exported_folder import Content, export
from .recorded_firmware import Exported, Options
from .sampled_unit import Variable

TEMPLATES = Path(__file__).with_name("templates")
TOPIC_FIELD = re.compile(r"([a-z]\w*)\.([\w.]+(\[\d+\])?)", re.ASCII)
"""A number of a uORB message, such as `vehicle_angular_velocity.xyz[0]`."""
MEMBER = re.compile(r"(state|sensors|setpoint|control)->[\w.]+(\[\d+\])?", re.ASCII)
"""A number of the Crazyflie's structs, such as `sensors->gyro.x`."""
STABILIZER = 1000
"""The rate in Hz at which the Crazyflie calls its controller."""


def export_ros2(controller: Controller, folder: str | os.PathLike[str], **options: Unpack[Options]) -> Path:
    """Write a controller as a ROS 2 package with a controller of ros2_control, and return the folder.

    The package has the plugin and its description, parameters (`config`), a launch file, and a test that runs where
    ROS 2 is. The measurement comes from state interfaces, the control goes to command interfaces, and the reference
    comes from the topic `~/reference`. The topic `~/status` has u, θ, â, the cost and the code.

    selftune's tests compile the package against stub headers; it has not run in ROS 2.

    **Arguments:** as in `export_c`. `dt` is required; `Loop` gives it.

    !!! Example

        >>> import tempfile, selftune as st
        >>> from selftune import models, policies
        >>> plant = models.FirstOrder(gain=2.0, time_constant=0.5, dt=0.01)
        >>> loop = st.Loop(plant, policies.PID(kp=1.0, ki=0.5, u_min=-10.0, u_max=10.0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     made = loop.export_ros2(f"{folder}/loop")
        ...     sorted(path.name for path in made.iterdir())
        ['CMakeLists.txt', 'README.md', 'config', 'launch', 'loop_plugin.xml', 'package.xml', 'selftune.json', 'src',
        'test']
    """
    return export(_ros2, controller, folder, options)


def export_px4(
    controller: Controller,
    folder: str | os.PathLike[str],
    *,
    inputs: Sequence[str],
    outputs: Sequence[str],
    **options: Unpack[Options],
) -> Path:
    """Write a controller as a module of PX4 with uORB messages in and out, and return the folder.

    selftune's tests compile the module against stub headers; it has not run in PX4.

    **Arguments:**

    - `inputs`: for each number of the measurement, then of the context, the uORB topic and field that has it, such as
      `"vehicle_angular_velocity.xyz[0]"`.
    - `outputs`: for each control, the topic and field, such as `"vehicle_torque_setpoint.xyz[0]"`.
    - The others are those of `export_c`. `dt` is required; `Loop` gives it.

    !!! Example

        >>> import tempfile, selftune as st
        >>> from selftune import models, policies
        >>> plant = models.FirstOrder(gain=2.0, time_constant=0.5, dt=0.01)
        >>> loop = st.Loop(plant, policies.PID(kp=1.0, ki=0.5, u_min=-10.0, u_max=10.0))
        >>> rates = ["vehicle_angular_velocity.xyz[0]", "vehicle_rates_setpoint.roll"]
        >>> fields = {"inputs": rates, "outputs": ["vehicle_torque_setpoint.xyz[0]"]}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     made = loop.export_px4(f"{folder}/loop", **fields)
        ...     sorted(path.name for path in made.iterdir())
        ['CMakeLists.txt', 'Kconfig', 'README.md', 'loop.c', 'loop.h', 'loop_module.cpp', 'loop_params.c',
        'loop_unit.c', 'loop_unit.h', 'selftune.json']
    """
    return export(partial(_px4, list(inputs), list(outputs)), controller, folder, options)


def export_crazyflie(
    controller: Controller,
    folder: str | os.PathLike[str],
    *,
    inputs: Sequence[str],
    outputs: Sequence[str],
    **options: Unpack[Options],
) -> Path:
    """Write a controller as an out-of-tree controller of the Crazyflie's firmware, and return the folder.

    selftune's tests compile the app against stub headers; it has not run on a Crazyflie.

    **Arguments:**

    - `inputs`: for each number of the measurement, then of the context, the member of the firmware's structs, such as
      `"sensors->gyro.x"`, `"state->attitude.roll"` or `"setpoint->attitudeRate.roll"`. The firmware uses degrees.
    - `outputs`: for each control, a member of `control`, such as `"control->torque[0]"`.
    - The others are those of `export_c`. `dt` is required and must be a multiple of 1 ms; `Loop` gives it.

    !!! Example

        >>> import tempfile, selftune as st
        >>> from selftune import models, policies
        >>> plant = models.FirstOrder(gain=2.0, time_constant=0.5, dt=0.01)
        >>> loop = st.Loop(plant, policies.PID(kp=1.0, ki=0.5, u_min=-10.0, u_max=10.0))
        >>> rates = ["sensors->gyro.x", "setpoint->attitudeRate.roll"]
        >>> fields = {"inputs": rates, "outputs": ["control->torque[0]"]}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     made = loop.export_crazyflie(f"{folder}/loop", **fields)
        ...     sorted(path.name for path in made.iterdir())
        ['Kbuild', 'Makefile', 'README.md', 'app-config', 'selftune.json', 'src']
    """
    return export(partial(_crazyflie, list(inputs), list(outputs)), controller, folder, options)


def _values(exported: Exported) -> dict[str, Any]:
    name = exported.name
    return {
        "name": name,
        "upper": name.upper(),
        "real": exported.firmware.real,
        "version": metadata.version("selftune"),
        "dt": f"{exported.period:g}",
        "period_us": round(1e6 * exported.period),
        "class_name": "".join(part.capitalize() for part in name.split("_")),
    }


def _of_role(exported: Exported, role: str) -> list[Variable]:
    """Return the inputs, or the controls of a unit."""
    found = sampled_unit.variables(exported)
    if role == "input":
        return [v for v in found if v.role == "input"]
    return [v for v in found if v.role == "output" and v.place.startswith("u[")]


def _learned(exported: Exported) -> list[Variable]:
    return [v for v in sampled_unit.variables(exported) if v.is_start]


def _readme(values: dict[str, Any], system: str, build: str, rows: list[tuple[Variable, str]]) -> str:
    lines = [f"| `{v.name}` | {v.role} | {v.unit} | {place} |" for v, place in rows]
    return fill(TEMPLATES / "README.glue.md.in", values | {"system": system, "build": build, "rows": "\n".join(lines)})


def _ros2(exported: Exported) -> Content:
    name, values = exported.name, _values(exported)
    inputs, controls = _of_role(exported, "input"), _of_role(exported, "output")
    measured = [v for v in inputs if v.place.startswith("x[")]
    wanted = inputs[len(measured) :]
    is_given = f"given == {len(wanted)}"
    filled = [
        f"    unit_.{v.place} = static_cast<{_type(exported, v)}>({is_given} ? message->data[{i}] : missing);"
        for i, v in enumerate(wanted)
    ]
    told = [*controls, *_learned(exported)]
    status = [f"      data[{i}] = static_cast<double>(unit_.{v.place});" for i, v in enumerate(told)]
    status.append(f"      data[{len(told)}] = static_cast<double>(unit_.info.cost);")
    status.append(f"      data[{len(told) + 1}] = static_cast<double>(unit_.code);")
    safe = ", ".join(f"{number:.9g}" if number % 1 else f"{number:.1f}" for number in _safe(exported))
    values |= {
        "rate": round(1 / exported.period),
        "inputs": "\n".join(filled),
        "status": "\n".join(status),
        "status_size": len(told) + 2,
        "safe_control": safe,
        "state_interfaces": ", ".join(_interfaces(exported, "measured", measured, "position")),
        "command_interfaces": ", ".join(_interfaces(exported, "u", controls, "effort")),
        "about_states": ", ".join(f"{v.name} {v.unit}".strip() for v in measured),
        "about_controls": ", ".join(f"{v.name} {v.unit}".strip() for v in controls),
    }
    templates = {
        "package.xml": "ros2_package.xml.in",
        "CMakeLists.txt": "ros2_CMakeLists.txt.in",
        f"{name}_plugin.xml": "ros2_plugin.xml.in",
        f"src/{name}_controller.cpp": "ros2_controller.cpp.in",
        f"config/{name}.yaml": "ros2_config.yaml.in",
        f"launch/{name}.launch.py": "ros2_launch.py.in",
        f"test/test_{name}.cpp": "ros2_test.cpp.in",
    }
    rows = [(v, f"state interface {i + 1}") for i, v in enumerate(measured)]
    rows += [(v, f"number {i + 1} of `~/reference`") for i, v in enumerate(wanted)]
    rows += [(v, f"command interface {i + 1}") for i, v in enumerate(controls)]
    rows += [(v, f"number {told.index(v) + 1} of `~/status`") for v in _learned(exported)]
    build = (
        "Copy this folder into `src` of a ROS 2 workspace (Humble or Jazzy), write the names of your interfaces into\n"
        f"`config/{name}.yaml`, then:\n\n```sh\ncolcon build --packages-select {name}\n"
        f"colcon test --packages-select {name}\nros2 launch {name} {name}.launch.py\n```"
    )
    files: dict[str, str | bytes] = {path: fill(TEMPLATES / source, values) for path, source in templates.items()}
    files |= {f"src/{path}": text for path, text in sampled_unit.sources(exported).items()}
    return Content(files | {"README.md": _readme(values, "ROS 2", build, rows)}, {})


INTERFACES = {
    "rad": "position",
    "m": "position",
    "rad/s": "velocity",
    "m/s": "velocity",
    "N·m": "effort",
    "N": "effort",
}
"""The interface of ros2_control for a signal with this unit."""
PREFIX = re.compile("(rate|torque) of ")
"""How a `RobotArm` calls the rate and the torque of a joint."""


def _interfaces(exported: Exported, kind: str, numbers: list[Variable], usual: str) -> list[str]:
    """Return the names of interfaces: JOINT/position, JOINT/velocity and JOINT/effort if the signals are those of an
    arm, whose controls have the names of its joints; otherwise names that the user has to replace."""
    signals = exported.signals.get(kind)
    if signals is None:
        return [f"joint{i + 1}/{usual}" for i in range(len(numbers))]
    joints = {signal.name for signal in exported.signals.get("u", ()) if INTERFACES.get(signal.unit) == "effort"}
    found = [(PREFIX.sub("", signal.name, count=1), INTERFACES.get(signal.unit)) for signal in signals]
    if all(joint in joints and interface is not None for joint, interface in found):
        return [f"{joint}/{interface}" for joint, interface in found]
    return [f"joint/{v.name.split('.')[-1]}" for v in numbers]


def _px4(inputs: list[str], outputs: list[str], exported: Exported) -> Content:
    name, values = exported.name, _values(exported)
    variables, controls = _of_role(exported, "input"), _of_role(exported, "output")
    example = "vehicle_angular_velocity.xyz[0]"
    read, written = (
        [_parsed("inputs", TOPIC_FIELD, field, example) for field in _counted("inputs", inputs, variables)],
        [_parsed("outputs", TOPIC_FIELD, field, example) for field in _counted("outputs", outputs, controls)],
    )
    sources = list(dict.fromkeys(match[1] for match in read))
    sinks = list(dict.fromkeys(match[1] for match in written))
    filled = [f"\t\t_{topic}_sub.update(&_{topic});" for topic in sources]
    filled += [
        f"\t\t_unit.{v.place} = static_cast<{_type(exported, v)}>(recent(_{m[1]}.timestamp, (float)_{m[1]}.{m[2]}));"
        for v, m in zip(variables, read, strict=True)
    ]
    sent = []
    for topic in sinks:
        sent += [f"\t\t{topic}_s {topic}{{}};", f"\t\t{topic}.timestamp = hrt_absolute_time();"]
        sent += [
            f"\t\t{topic}.{m[2]} = _unit.{v.place};" for v, m in zip(controls, written, strict=True) if m[1] == topic
        ]
        sent.append(f"\t\t_{topic}_pub.publish({topic});")
    members = [f"\tuORB::Subscription _{t}_sub{{ORB_ID({t})}};\n\t{t}_s _{t}{{}};" for t in sources]
    members += [f"\tuORB::Publication<{t}_s> _{t}_pub{{ORB_ID({t})}};" for t in sinks]
    values |= {
        "prefix": re.sub("_", "", name.upper())[:7],  # PX4 allows 16 characters
        "includes": "\n".join(f"#include <uORB/topics/{topic}.h>" for topic in dict.fromkeys([*sources, *sinks])),
        "inputs": "\n".join(filled),
        "outputs": "\n".join(sent),
        "members": "\n".join(members),
    }
    templates = {
        f"{name}_module.cpp": "px4_module.cpp.in",
        f"{name}_params.c": "px4_params.c.in",
        "CMakeLists.txt": "px4_CMakeLists.txt.in",
        "Kconfig": "px4_Kconfig.in",
    }
    rows = [(v, f"`{field}`") for v, field in zip([*variables, *controls], [*inputs, *outputs], strict=True)]
    build = (
        f"Copy this folder to `src/modules/{name}` of PX4-Autopilot, and add `CONFIG_MODULES_{name.upper()}=y` to the\n"
        f"file of your board, such as `boards/px4/sitl/default.px4board`. Build, and type `{name} start` in PX4's\n"
        "shell. Switch the module of PX4 off that publishes the same topic: two publishers would fight for the\n"
        "actuators."
    )
    files: dict[str, str | bytes] = {path: fill(TEMPLATES / source, values) for path, source in templates.items()}
    return Content(files | sampled_unit.sources(exported) | {"README.md": _readme(values, "PX4", build, rows)}, {})


def _crazyflie(inputs: list[str], outputs: list[str], exported: Exported) -> Content:
    name, values = exported.name, _values(exported)
    variables, controls = _of_role(exported, "input"), _of_role(exported, "output")
    for field in _counted("inputs", inputs, variables):
        _parsed("inputs", MEMBER, field, "sensors->gyro.x")
    for field in _counted("outputs", outputs, controls):
        _parsed("outputs", MEMBER, field, "control->torque[0]")
    every = round(STABILIZER * exported.period)
    if every < 1 or abs(every - STABILIZER * exported.period) > 1e-6:
        raise ArgumentError(
            "dt", "a multiple of 0.001 s, the period of the Crazyflie's stabilizer", f"{exported.period:g}"
        )
    learned = _learned(exported)
    values |= {
        "every": every,
        "group": name[:12],
        "inputs": "\n".join(
            f"        unit.{v.place} = ({_type(exported, v)}){field};"
            for v, field in zip(variables, inputs, strict=True)
        ),
        "outputs": "\n".join(f"    {field} = unit.{v.place};" for v, field in zip(controls, outputs, strict=True)),
        "logged_declared": f"static float learned[{len(learned)}]; /* theta, then a_hat */",
        "logged": "\n".join(f"        learned[{i}] = (float)unit.{v.place};" for i, v in enumerate(learned)),
        "logged_added": "\n".join(f"LOG_ADD(LOG_FLOAT, learned{i}, &learned[{i}])" for i in range(len(learned))),
    }
    rows = [(v, f"`{field}`") for v, field in zip([*variables, *controls], [*inputs, *outputs], strict=True)]
    rows += [(v, f"log variable `{values['group']}.learned{i}`") for i, v in enumerate(learned)]
    build = (
        "Clone Bitcraze's crazyflie-firmware, then:\n\n```sh\nmake CRAZYFLIE_BASE=$HOME/crazyflie-firmware\n"
        "make CRAZYFLIE_BASE=$HOME/crazyflie-firmware cload\n```\n\nSet the parameter `stabilizer.controller` to the "
        "number of the out-of-tree controller.\n`learning`, `tuning` and `safe` are parameters of the group "
        f"`{values['group']}`."
    )
    files: dict[str, str | bytes] = {
        f"src/{name}_controller.c": fill(TEMPLATES / "crazyflie_controller.c.in", values),
        "src/Kbuild": f"obj-y += {name}_controller.o {name}.o {name}_unit.o\n",
        "Kbuild": "obj-y += src/\n",
        "Makefile": fill(TEMPLATES / "crazyflie_Makefile.in", values),
        "app-config": "CONFIG_APP_ENABLE=y\nCONFIG_APP_PRIORITY=1\nCONFIG_APP_STACKSIZE=350\nCONFIG_CONTROLLER_OOT=y\n",
        "README.md": _readme(values, "the Crazyflie's firmware", build, rows),
    }
    return Content(files | {f"src/{path}": text for path, text in sampled_unit.sources(exported).items()}, {})


def _type(exported: Exported, variable: Variable) -> str:
    return {"real": exported.firmware.real, "integer": "int32_t", "boolean": "int"}[variable.kind]


def _safe(exported: Exported) -> list[float]:
    return [float(number) for number in sampled_unit.safe_control(exported)]


def _counted(argument: str, fields: list[str], variables: list[Variable]) -> list[str]:
    if len(fields) != len(variables):
        names = ", ".join(v.name for v in variables)
        raise ArgumentError(argument, f"{len(variables)} fields, for {names}", arguments.describe(fields))
    return fields


def _parsed(argument: str, pattern: re.Pattern[str], field: str, example: str) -> re.Match[str]:
    match = pattern.fullmatch(field)
    if match is None:
        raise ArgumentError(argument, f"fields such as {example!r}", f"{field!r}")
    return match
