"""Without an extra: the package imports, and each name that needs one says which, and how to install it."""

import json
import subprocess
import sys

SCRIPT = """
import json, sys
for package in {blocked!r}:
    sys.modules[package] = None
import selftune as st

said = {{}}
def ask(name, call):
    try:
        call()
    except ModuleNotFoundError as error:
        said[name] = str(error)

for name in dir(st):
    ask(name, lambda: getattr(st, name))
ask("sweep()", lambda: st.sweep(None, None, {{}}, seeds=1, theta=[1.0], folder="nowhere"))
ask("Sweep()", lambda: st.Sweep("nowhere"))
print(json.dumps(said))
"""
EXPERIMENTS = ("xarray", "zarr", "matplotlib", "plotly", "typer", "rich", "pydantic")
OTHERS = ("dask", "distributed", "upath", "mujoco", "mcap", "pyulog", "rosbags", "foxglove", "websockets", "pyarrow")
MAVLINK = ("pymavlink",)


def run(script):
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)


def test_each_name_says_what_to_install():
    done = run(SCRIPT.format(blocked=EXPERIMENTS + OTHERS + MAVLINK))
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said.keys() == {"Autopilot", "AutopilotRun", "Best", "best", "sweep()", "Sweep()"}
    for name, text in said.items():
        start, _, end = text.partition("; ")
        asked_for, _, missing = start.partition(" needs ")
        assert asked_for == f"selftune.{name.removesuffix('()')}"
        extra = "mavlink" if name.startswith("Autopilot") else "experiments"
        assert missing in (MAVLINK if extra == "mavlink" else EXPERIMENTS)
        assert end == f"install it with: pip install 'selftune[{extra}]'"


def test_a_package_of_ours_that_is_missing_is_no_extra():
    done = run("import sys, selftune as st; sys.modules['selftune.reporting.statistics'] = None; st.best")
    assert done.returncode == 1
    assert done.stderr.endswith(
        "ModuleNotFoundError: import of selftune.reporting.statistics halted; None in sys.modules\n"
    )


def test_the_command():
    done = run("import sys; sys.modules['typer'] = None; from selftune.__main__ import main; main()")
    assert done.returncode == 1
    assert done.stderr == "selftune: the command needs typer; install it with: pip install 'selftune[experiments]'\n"
