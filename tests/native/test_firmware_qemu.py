"""Exported controllers on an emulated Cortex-M4F: they agree with the host, and what they cost. `make firmware`."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import jax.numpy as jnp
import pytest
from benchmarks._problems import PROBLEMS

import selftune as st

from . import cortex_m4

HEADINGS = ("text", "rodata", "state", "stack", "act", "observe", "act, fast", "observe, fast")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _tools() -> None:
    """Without the tools the tests are skipped, or fail where they are demanded."""
    if not cortex_m4.available():
        if os.environ.get("SELFTUNE_NEEDS_ARM") == "1":
            pytest.fail(cortex_m4.advice())
        pytest.skip(cortex_m4.advice())


@pytest.fixture(scope="module")
def table(request) -> Iterator[dict[str, list[float]]]:
    """A row a problem, printed when all are in: bytes, then instructions a step."""
    rows: dict[str, list[float]] = {}
    yield rows
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\n{'':16}", *(f"{heading:>14}" for heading in HEADINGS))
        for name, row in rows.items():
            print(f"{name:16}", *(f"{value:14,.0f}" for value in row))


@pytest.fixture(scope="module", params=sorted(PROBLEMS))
def exported(request, tmp_path_factory) -> tuple[Path, str]:
    name, folder = request.param, tmp_path_factory.mktemp(request.param)
    problem = PROBLEMS[name](dtype=jnp.float32)
    scenario = problem.scenario(200)
    start = dict(x=scenario.x0, theta=problem.theta, a_hat=problem.a_hat)
    st.export_c(problem.controller, folder, **start, scenario=scenario, name=name)
    return folder, name


def test_the_board_agrees_with_the_host(exported, tmp_path):
    folder, name = exported
    printed = cortex_m4.run(cortex_m4.build(folder, name, folder / "main.c", tmp_path))
    found = re.search(r"largest difference: (\S+)", printed)
    assert found, printed
    # A hundred times float32's rounding: newlib's sines are not the host's, and what differs is fed back.
    assert float(found[1]) < 1e-5


def test_the_board_notices_a_difference(exported, tmp_path):
    """What was observed is replaced by zeros, so that the estimates go elsewhere."""
    folder, name = exported
    include = '#include "replay.h"\n'
    zeros = "static const float zeros[REPLAY_STEPS][sizeof replay_f_obs[0] / sizeof(float)];\n"
    wrong = tmp_path / "wrong.c"
    source = (folder / "main.c").read_text()
    assert include in source
    wrong.write_text(source.replace(include, f"{include}{zeros}#define replay_f_obs zeros\n"))
    elf = cortex_m4.build(folder, name, wrong, tmp_path)
    with pytest.raises(RuntimeError, match="largest difference"):
        cortex_m4.run(elf)


def test_no_double_arithmetic_and_no_heap(exported, tmp_path):
    compiled = cortex_m4.compile_object(*exported, tmp_path)
    unwanted = re.compile(r"__aeabi_(d|f2d|i2d|ui2d|l2d|ul2d)|[mc]alloc|realloc|free|printf")
    assert [symbol for symbol in cortex_m4.symbols(compiled) if unwanted.search(symbol)] == []
    sizes = cortex_m4.sections(compiled)
    assert sizes[".data"] == sizes[".bss"] == 0  # all that changes is in the caller's struct


def test_what_it_costs(exported, table):
    exact = cortex_m4.measure(*exported)
    fast = cortex_m4.measure(*exported, cortex_m4.FAST)
    table[exported[1]] = [*exact, fast.act_instructions, fast.observe_instructions]
    assert exact.act_instructions > 0
    assert exact.observe_instructions > 0
    assert exact.ram_state > 0
    # Deeper than what is watched, and the number would be a floor.
    assert 0 <= exact.stack < cortex_m4.STACK
    # Fusing only merges instructions; the rest is how the compiler then schedules.
    assert fast.act_instructions < 1.1 * exact.act_instructions
