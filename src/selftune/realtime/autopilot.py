"""`Autopilot`: a companion computer that tunes the gains of an autopilot over MAVLink."""

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np

from ..control.guard import Decision, Mode
from ..foundation import arguments
from ..foundation.errors import ArgumentError
from . import autopilot_parameters
from .agent import Agent
from .autopilot_link import Fields, Link, check_period, seconds
from .autopilot_parameters import Ending, Parameters, StopError

_LOGGER = logging.getLogger("selftune")
_RESTORED = Decision.EXPLODED | Decision.UNSTABLE | Decision.REPAIRED
"""Decisions of a guard after which θ may be the last good θ."""


@dataclass(frozen=True)
class AutopilotRun:
    """How `Autopilot.tune` ended.

    - `ended`: the reason, and `detail`: the reason with the names and numbers that belong to it.
    - `first`: the parameters before the run. `best`: the last tuned values that the autopilot confirmed.
    - `parameters`: the values that the autopilot has confirmed last, so those that it has now.
    - `is_safe`: whether the autopilot has confirmed that it has the parameters that it should have at the end: `first`,
      or with `keep=True`, after a run that nothing has disturbed, `best`. A parameter that somebody else has set counts
      as safe. If this is False, set the parameters by hand.
    - `steps`: how many steps the agent made; `missed`: how many of them had no measurement, because messages were lost.
    - `writes`: how many values the autopilot confirmed in the run.

    !!! Example

        >>> import jax.numpy as jnp, numpy as np, selftune as st
        >>> from selftune.testing.fake_autopilot import FakeAutopilot  # stands for an autopilot at the end of a cable
        >>> system = st.MatchedSystem(
        ...     dynamics=lambda x, v, t: x + 0.02 * v,
        ...     residual=lambda x, a, t: a,
        ...     actuation=lambda x, theta, t: -theta * x,
        ...     cost=lambda x, u, theta, t: jnp.sum(x**2),
        ... )
        >>> controller = st.Controller(system, st.MGAPS(1e-3), st.GradientEstimator(0.1))
        >>> agent = st.Agent(controller, x=np.zeros(1), theta=np.ones(1), a_hat=np.zeros(1), infer=True)
        >>> with FakeAutopilot() as fake, st.Autopilot(fake.device) as autopilot:
        ...     run = autopilot.tune(
        ...         agent,
        ...         gains=lambda theta: {"RATE_P": theta[0]},
        ...         measurement=["ATTITUDE.rollspeed"],
        ...         dt=0.02,
        ...         duration=0.1,
        ...     )
        >>> str(run.ended), run.writes, run.parameters, run.is_safe
        ('the time is over', 0, {'RATE_P': 1.0}, True)
    """

    ended: Ending
    detail: str
    first: dict[str, float]
    best: dict[str, float]
    parameters: dict[str, float]
    is_safe: bool
    steps: int
    missed: int
    writes: int


class Autopilot:
    """A connection to an autopilot, such as PX4 or ArduPilot, over MAVLink. It needs the extra `mavlink`.

    An `Agent` on a companion computer reads the autopilot's messages and tunes the gains of the autopilot's own
    control loop. The autopilot flies; the agent's control u is never sent. Only θ is, as parameters. So the policy of
    the agent's loop must be the control law of the autopilot: the agent predicts with this law how gains change the
    cost.

    !!! warning "Safety"

        Wrong gains make a vehicle crash. selftune has tested this class only against a simulated autopilot in its own
        tests, never with a real one. Nothing is written unless you call `tune(…, write=True)`. Try that in your
        autopilot's simulator first, then on a test stand, and fly only with a pilot who can take over and with a
        ground station that can reset the parameters. An autopilot stores parameters permanently: if this program is
        killed, or if its computer loses power, the tuned gains stay. MAVLink does not check who sends: use a link that
        only your own computers can reach.

    **Arguments:**

    - `device`: `udpin:HOST:PORT` to listen, `udpout:HOST:PORT` to call, or a serial port such as `/dev/ttyACM0`, with
      `baud` bits per second.
    - `system`: the number of the autopilot's system; by default the first autopilot that sends a heartbeat.
    - `timeout`: the link counts as lost after so many seconds without the message that the agent follows. The first
      heartbeat may take five times as long.
    - `retry`: a request that is not answered is sent again after so many seconds, up to five times.

    Use it as a context manager, or call `close`. `ConnectionError` is raised if no autopilot sends a heartbeat.

    !!! Example

        >>> import selftune as st
        >>> from selftune.testing.fake_autopilot import FakeAutopilot  # stands for an autopilot at the end of a cable
        >>> with FakeAutopilot() as fake, st.Autopilot(fake.device) as autopilot:
        ...     autopilot.read(["RATE_P", "RATE_I"])
        {'RATE_P': 1.0, 'RATE_I': 0.5}
    """

    def __init__(
        self, device: str, *, baud: int = 115200, system: int | None = None, timeout: float = 2.0, retry: float = 0.5
    ):
        arguments.instance("device", device, str)
        if system is not None and not 1 <= arguments.whole("system", system) <= 255:
            raise ArgumentError("system", "a number from 1 to 255, or None", f"{system}")
        self._timeout = float(arguments.positive("timeout", timeout))
        self._retry = float(arguments.positive("retry", retry))
        self._link = Link(device, baud=arguments.count("baud", baud), system=system, timeout=self._timeout)

    @property
    def system(self) -> int:
        """The number of the autopilot's system."""
        return self._link.system

    def read(self, names: Iterable[str]) -> dict[str, float]:
        """Return the values of parameters by their names, to make a loop with the autopilot's own gains.

        `ArgumentError` names a parameter that the autopilot does not have, or that is not a real number.
        """
        return autopilot_parameters.read(self._link, names, self._retry)

    def tune(
        self,
        agent: Agent,
        *,
        gains: Callable[[Any], Mapping[str, Any]],
        measurement: Sequence[str],
        reference: Sequence[str] = (),
        dt: float,
        duration: float,
        write: bool = False,
        keep: bool = False,
        interval: float = 5.0,
        change: float = 0.05,
        span: float = 2.0,
        patience: float = 30.0,
    ) -> AutopilotRun:
        """Let an agent follow the autopilot for `duration` seconds, and with `write=True` tune the autopilot's gains.

        By default nothing is written: the run only shows where the gains would begin to go. Read the class's notice
        about safety before you write.

        - **A step.** The agent makes a step when the message of the first field of `measurement` comes, and only while
          the autopilot is armed. Lost messages are missing measurements: the agent bridges them with its model.
        - **Limits.** Parameters are written at most once in `interval` seconds, all of them together. A value changes
          by at most the factor 1 + `change` each time, and never leaves the range from first / `span` to
          first · `span`. If the agent's gains are further from the autopilot's than one such change, θ is frozen until
          the autopilot has caught up: otherwise the agent would learn from gains that nobody flies with.
        - **Rollback.** If the guard restores the last good θ, its gains are written at once. At the end the first
          parameters are written back: after `duration` (unless `keep`), after a refused parameter, after a parameter
          that somebody else has changed (this one stays), after too many refused measurements, after Ctrl-C or any
          error, and after a lost link as soon as the link is back, if that is within `patience` seconds.

        **Arguments:**

        - `agent`: an agent whose θ has the autopilot's gains; see `read`.
        - `gains`: a function of θ that returns the parameters by name, such as
          `lambda theta: {"MC_ROLLRATE_P": loop.policy.gains(theta)["kp"]}`. At the start its values must be those in
          the autopilot, and not zero.
        - `measurement`, `reference`: fields of messages, such as `ATTITUDE.rollspeed` or `LOCAL_POSITION_NED.z`, in
          MAVLink's units. `reference` is passed to `agent.act` if it is given.
        - `dt`: the sampling period of the agent's loop; the first message must come with this period.
        - `keep`: leave the last tuned parameters in the autopilot if nothing has disturbed the run.
        """
        arguments.instance("agent", agent, Agent)
        arguments.instance("write", write, bool)
        arguments.instance("keep", keep, bool)
        given = dict(dt=dt, duration=duration, interval=interval, change=change, patience=patience)
        numbers = {name: float(arguments.positive(name, value)) for name, value in given.items()}
        most = float(arguments.number("span", span, lambda v: 1 < v < np.inf, "a finite number > 1"))
        fields = Fields(
            ("measurement", tuple(measurement)), ("reference", tuple(reference)), timeout=max(self._timeout, 5 * dt)
        )
        wanted = _Gains(agent, gains)
        first = self.read(wanted())
        _check_start(first, wanted())
        check_period(self._link, fields, numbers["dt"], self._timeout)
        parameters = Parameters(self._link, first, may_write=write, span=most, retry=self._retry)
        text = ", ".join(f"{name} = {value:.9g}" for name, value in first.items())
        if write:
            _LOGGER.warning("gains of the autopilot will be changed in flight; the first values are %s", text)
        else:
            _LOGGER.info("the autopilot's gains are only read: %s", text)
        follower = _Follower(self._link, agent, wanted, fields, parameters, numbers, self._timeout)
        stays = False
        try:
            end = follower.run()
            stays = keep and end.ending is Ending.FINISHED
        finally:  # also after Ctrl-C and errors
            best = dict(parameters.confirmed)
            writes = parameters.writes
            follower.release()
            is_safe = stays or parameters.write_back(numbers["patience"])
            if write:
                _LOGGER.warning("the autopilot has confirmed %s", parameters.confirmed)
        confirmed = dict(parameters.confirmed)
        return AutopilotRun(
            end.ending, str(end), first, best, confirmed, is_safe, follower.steps, follower.missed, writes
        )

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    def __enter__(self) -> "Autopilot":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class _Gains:
    """The gains of the agent's θ, as parameters of the autopilot."""

    def __init__(self, agent: Agent, gains: Callable[[Any], Mapping[str, Any]]):
        self._agent, self._gains = agent, gains

    def __call__(self) -> dict[str, float]:
        found = {name: np.asarray(value) for name, value in self._gains(self._agent.theta).items()}
        if not found or any(value.size != 1 or not np.isfinite(value).all() for value in found.values()):
            raise ArgumentError("gains", "a function that returns one finite number for each name", f"{found}")
        return {name: float(value.reshape(())) for name, value in found.items()}


def _check_start(first: Mapping[str, float], wanted: Mapping[str, float]) -> None:
    for name, value in first.items():
        if value == 0:
            raise ArgumentError("gains", "parameters that are not 0", f"{name} = 0", "leave it out of the loop's θ")
        if not math.isclose(value, wanted[name], rel_tol=1e-4):
            hint = "make the loop with the autopilot's gains, which read() returns"
            raise ArgumentError("gains", f"{name} = {value:g}, as in the autopilot", f"{wanted[name]:g}", hint)


class _Follower:
    """One run: an agent that follows the messages of an autopilot, and parameters that follow the agent."""

    def __init__(
        self,
        link: Link,
        agent: Agent,
        wanted: _Gains,
        fields: Fields,
        parameters: Parameters,
        numbers: dict[str, float],
        timeout: float,
    ):
        self._link, self._agent, self._wanted, self._fields = link, agent, wanted, fields
        self._parameters, self._numbers, self._timeout = parameters, numbers, timeout
        self._time: float | None = None
        self._heard = monotonic()
        self._next_write = monotonic() + numbers["interval"]
        self._next_look = 0.0
        self._has_frozen = False
        self.steps = self.missed = 0

    def run(self) -> StopError:
        """Follow the messages until the run ends, and return why."""
        until = monotonic() + self._numbers["duration"]
        tick = min(self._timeout, self._numbers["dt"]) / 2
        try:
            while (now := monotonic()) < until:
                message = self._link.receive(min(until, now + tick))
                if message is not None:
                    self._parameters.hear(message)
                    if self._fields.hear(message):
                        self._heard = monotonic()
                        self._step(seconds(message))
                if self._link.emptied - self._heard > self._timeout:
                    raise StopError(Ending.LINK_LOST, f"no message {self._fields.clock} for {self._timeout:g} s")
                self._parameters.repeat()
        except StopError as end:
            _LOGGER.error("the tuning ends: %s", end)
            return end
        return StopError(Ending.FINISHED)

    def _step(self, time: float) -> None:
        if not self._link.is_armed:
            self._time = None
            return
        if self._time is not None and time < self._time - 1.0:
            raise StopError(Ending.RESTARTED)
        if self._time is not None and time > self._time + 2 * self._timeout + 1.0:
            # Without this, the loop below could make millions of steps, and would not hear the autopilot meanwhile.
            raise StopError(Ending.LINK_LOST, f"the clock of {self._fields.clock} jumps by {time - self._time:.4g} s")
        # The step after a pause has no predecessor: a missing measurement tells the agent so.
        elapsed = 2.0 if self._time is None else (time - self._time) / self._numbers["dt"]
        missing = round(elapsed) - 1 if self.steps else 0
        if missing < 0:  # a message that came twice, or too late
            return
        self._time = time
        x, reference = self._fields.values()
        for _ in range(missing):
            self._act(np.full_like(x, np.nan), reference)
        self.missed += missing
        self._act(x, reference)
        self._tune()

    def _act(self, x: np.ndarray, reference: np.ndarray) -> None:
        self._agent.act(x, **({"reference": reference} if reference.size else {}))  # u is not sent: the autopilot flies
        self.steps += 1
        if self._agent.decisions & Decision.FAILSAFE:
            raise StopError(Ending.BLIND)
        if self._agent.decisions & _RESTORED:
            self._parameters.write(self._parameters.inside(self._wanted()))
            self._next_write = monotonic() + self._numbers["interval"]

    def _tune(self) -> None:
        if monotonic() < self._next_look:  # to compute gains takes longer than a step
            return
        self._next_look = monotonic() + min(1.0, self._numbers["interval"]) / 10
        values, is_out_of_reach = self._parameters.limited(self._wanted(), self._numbers["change"])
        if is_out_of_reach and not self._has_frozen and self._agent.state.guard.mode == Mode.LEARNING:
            self._agent.freeze()
            self._has_frozen = True
        elif not is_out_of_reach:
            self.release()
        if values and not self._parameters.pending and monotonic() >= self._next_write:
            self._parameters.write(values)
            self._next_write = monotonic() + self._numbers["interval"]

    def release(self) -> None:
        """Let the agent learn again if this object has frozen it."""
        if self._has_frozen:
            self._agent.resume()
            self._has_frozen = False
