"""Who learns: pause, freeze, resume and restore; and what the log tells."""

import logging

import numpy as np
import pytest

from tests.test_guard import NAN, D, agent, both, natively, play


class TestModes:
    @both
    def test_pause_freeze_resume_restore(self, engine):
        one = agent(engine, window=40)
        _, _, x = play(one, range(100))
        one.pause()
        theta, a_hat = one.theta, one.a_hat
        _, _, x = play(one, range(100, 150), 2 * x)  # what would be a rollback
        assert one.decisions == D.STILL
        np.testing.assert_array_equal(one.theta, theta)
        np.testing.assert_array_equal(one.a_hat, a_hat)
        assert np.any(one.info.tuner.gradient != 0)  # a dry run has something to show
        one.freeze()
        _, _, x = play(one, range(150, 200), x)
        np.testing.assert_array_equal(one.theta, theta)
        assert np.any(one.a_hat != a_hat)
        one.resume()
        np.testing.assert_array_equal(one.state.controller.tuner.y, 0)
        _, _, x = play(one, range(200, 290), x)
        assert np.any(one.theta != theta)
        good = one.state.guard.window.good
        one.restore()
        np.testing.assert_array_equal(one.theta, good.theta)
        np.testing.assert_array_equal(one.a_hat, good.a_hat)
        play(one, range(290, 292), x)
        assert one.result.message == "ok"

    def test_what_happened_meanwhile_is_not_held_against_the_tuner(self):
        one = agent(window=40)
        _, _, x = play(one, range(400))
        rollbacks = int(one.state.guard.window.rollbacks)
        one.pause()
        for t in range(400, 405):
            one.act([5.0, 0.0], t)  # carried by hand
        one.resume()
        play(one, range(405, 440), x)
        assert int(one.state.guard.window.rollbacks) == rollbacks

    def test_frozen_the_estimate_alone_comes_back(self):
        one = agent(window=130)
        play(one, range(400))
        theta, good = one.theta, one.state.guard.window.good
        assert np.any(good.theta != theta)
        one.freeze()
        for t in range(400, 440):  # something that the model does not explain
            one.act([20.0, 0.0], t)
            if D.EXPLODED in one.decisions:
                break
            one.observe([30.0])
        assert D.EXPLODED in one.decisions
        np.testing.assert_array_equal(one.theta, theta)
        np.testing.assert_array_equal(one.a_hat, good.a_hat)

    def test_restore_needs_something_to_restore(self):
        with pytest.raises(
            RuntimeError, match="restore: expected a guard with rollback, got one whose rollback is off"
        ):
            agent(rollback=None).restore()


@natively
def test_the_log_tells_what_begins_and_ends(engine, caplog):
    one = agent(engine)
    with caplog.at_level(logging.INFO, logger="selftune"):
        play(one, range(20), disturb=lambda t, x: [NAN, 0.0] if 5 <= t < 9 or t == 12 else x)
        one.act([0.1, 0.1], 600)
        one.observe([1e9])
        one.act([NAN, 0.1], 601)
        one.restore()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "step 5: refused"),  # and not at 12, so soon after
        ("WARNING", "step 600: the observation is refused"),
        ("WARNING", "step 601: refused"),
        ("WARNING", "restored the last good θ and â, as requested"),
    ]
