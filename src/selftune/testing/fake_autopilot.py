"""An autopilot for tests and first tries: a control loop of its own, and MAVLink on a UDP port of this machine.

It needs the extra `mavlink`. The autopilot flies a first-order plant with a PI law. It sends ATTITUDE at every step,
ATTITUDE_TARGET with the wanted rate, and heartbeats. A step of `DT` seconds takes `PACE` seconds of the test's time.
"""

import contextlib
import socket
import threading
import time

import numpy as np
from pymavlink.dialects.v20 import common as mavlink

DT, PACE = 0.02, 0.004


class FakeAutopilot:
    def __init__(self, **parameters):
        self.parameters = {"RATE_P": 1.0, "RATE_I": 0.5} | parameters
        self.requests = []  # (time, name, value) of each PARAM_SET that arrived
        self.refuses = set()  # names whose value does not change
        self.errors = False  # whether a refusal is a PARAM_ERROR, or the old value
        self.drop_requests = 0  # so many of the next PARAM_SET and PARAM_REQUEST_READ get lost
        self.drop_answers = 0
        self.drop_steps = 0  # so many of the next ATTITUDE get lost
        self.silent_until = 0  # before this step the link is lost in both directions
        self.at_request = {}  # number of a PARAM_SET: a function to call when it arrives
        self.is_armed = True
        self.clock = 0  # milliseconds, added to the time of each message
        self.gyro = 0.0  # added to the measured rate
        self.steps = 0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.setblocking(False)
        self._peer = None
        self._mav = mavlink.MAVLink(self, srcSystem=7, srcComponent=1)
        self._mav.robust_parsing = True
        self._ground = mavlink.MAVLink(self, srcSystem=255, srcComponent=190)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._fly, daemon=True)

    @property
    def device(self):
        return f"udpout:127.0.0.1:{self._socket.getsockname()[1]}"

    @property
    def is_silent(self):
        return self.steps < self.silent_until

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join(10)
        self._socket.close()
        assert not self._thread.is_alive()

    def write(self, packet):
        if self._peer is not None and not self.is_silent:
            with contextlib.suppress(OSError):  # the companion has closed its port
                self._socket.sendto(bytes(packet), self._peer)

    def set(self, name, value):
        """Change a parameter and tell everybody, as after a request of a ground station."""
        self.parameters[name] = value
        self._value(name)

    def _value(self, name):
        kind = mavlink.MAV_PARAM_TYPE_INT32 if name == "COUNT" else mavlink.MAV_PARAM_TYPE_REAL32
        self._mav.param_value_send(name.encode(), self.parameters[name], kind, len(self.parameters), 0)

    def _fly(self):
        x = integral = 0.0
        begin = time.monotonic()
        while not self._stop.wait(max(0.0, begin + self.steps * PACE - time.monotonic())):
            self._answer_all()
            wanted = 1.0 if self.steps // 100 % 2 else -1.0
            kp, ki = self.parameters["RATE_P"], self.parameters["RATE_I"]
            u = np.clip(kp * (wanted - x) + ki * integral, -20.0, 20.0)
            integral += DT * (wanted - x)
            x += DT * (2.0 * u + 0.3 - x) / 0.5
            self._tell(wanted, x)
            self.steps += 1

    def _tell(self, wanted, x):
        now = round(1000 * DT) * self.steps + self.clock
        if self.steps % 20 == 0:
            mode = mavlink.MAV_MODE_FLAG_SAFETY_ARMED if self.is_armed else 0
            self._ground.heartbeat_send(mavlink.MAV_TYPE_GCS, mavlink.MAV_AUTOPILOT_INVALID, 0, 0, 4)
            self._ground.attitude_send(now, 0, 0, 0, 1e6, 0, 0)  # not the autopilot's
            self._mav.heartbeat_send(mavlink.MAV_TYPE_QUADROTOR, mavlink.MAV_AUTOPILOT_PX4, mode, 0, 4)
        if self.steps % 10 == 0:
            self._mav.attitude_target_send(now, 0, [1.0, 0.0, 0.0, 0.0], wanted, 0, 0, 0.5)
        if self.drop_steps:
            self.drop_steps -= 1
        else:
            self._mav.attitude_send(now, 0, 0, 0, x + self.gyro, 0, 0)

    def _answer_all(self):
        with contextlib.suppress(BlockingIOError):
            while True:
                packet, peer = self._socket.recvfrom(2048)
                if not self.is_silent:
                    self._peer = peer
                    for message in self._mav.parse_buffer(packet) or ():
                        self._answer(message)

    def _answer(self, message):
        kind = message.get_type()
        if kind not in ("PARAM_SET", "PARAM_REQUEST_READ"):
            return
        assert (message.target_system, message.target_component) == (7, 1)
        name = message.param_id
        if kind == "PARAM_SET":
            self.requests.append((time.monotonic(), name, message.param_value))
            self.at_request.get(len(self.requests), lambda: None)()
        if self.drop_requests:
            self.drop_requests -= 1
            return
        is_refused = kind == "PARAM_SET" and name in self.refuses
        if kind == "PARAM_SET" and name in self.parameters and not is_refused:
            self.parameters[name] = message.param_value
        if self.drop_answers:
            self.drop_answers -= 1
        elif name in self.parameters and not (is_refused and self.errors):
            self._value(name)
        elif self.errors:
            error = mavlink.MAV_PARAM_ERROR_READ_ONLY if is_refused else mavlink.MAV_PARAM_ERROR_DOES_NOT_EXIST
            self._mav.param_error_send(255, 190, name.encode(), -1, error)
