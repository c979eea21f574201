"""Controllers that tune themselves while they run.

A public name is imported when it is first used. So importing this package takes no time, and `selftune --help` does not
load JAX.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from .foundation import extras, jax_releases

if _TYPE_CHECKING:
    from . import models as models
    from . import policies as policies
    from . import theory as theory
    from .control.controller import Controller as Controller
    from .control.controller import ControllerState as ControllerState
    from .control.controller import Info as Info
    from .control.guard import Decision as Decision
    from .control.guard import Guard as Guard
    from .control.guard_limits import GuardRule as GuardRule
    from .control.guard_limits import GuardSuggestion as GuardSuggestion
    from .control.guard_limits import suggest_guard as suggest_guard
    from .control.guard_state import GuardInfo as GuardInfo
    from .estimators import RLS as RLS
    from .estimators import AbstractEstimator as AbstractEstimator
    from .estimators import AutoEstimator as AutoEstimator
    from .estimators import EstimatorInfo as EstimatorInfo
    from .estimators import Frozen as Frozen
    from .estimators import GradientEstimator as GradientEstimator
    from .estimators import KalmanEstimator as KalmanEstimator
    from .estimators import Known as Known
    from .estimators import NormalizedGradient as NormalizedGradient
    from .export.arduino_folder import export_arduino as export_arduino
    from .export.c_folder import export_c as export_c
    from .export.fmu_folder import export_fmu as export_fmu
    from .export.glue_folders import export_crazyflie as export_crazyflie
    from .export.glue_folders import export_px4 as export_px4
    from .export.glue_folders import export_ros2 as export_ros2
    from .export.web_folder import export_web as export_web
    from .foundation.errors import ArgumentError as ArgumentError
    from .foundation.phases import phase as phase
    from .logs.mapping import LogMapping as LogMapping
    from .logs.mapping import LogSignal as LogSignal
    from .logs.plant_log import PlantLog as PlantLog
    from .logs.reading import read_log as read_log
    from .loop import quadrotor_rules as quadrotor_rules
    from .loop import references as references
    from .loop import robot_rules as robot_rules
    from .loop.commissioning import Commissioned as Commissioned
    from .loop.commissioning import CommissioningStep as CommissioningStep
    from .loop.commissioning import commission as commission
    from .loop.control_loop import Loop as Loop
    from .loop.log_replay import Replayed as Replayed
    from .loop.log_replay import Saving as Saving
    from .loop.log_replay import replay as replay
    from .loop.stability import Margins as Margins
    from .loop.tracking import AbstractStateCost as AbstractStateCost
    from .loop.tracking import FlightTracking as FlightTracking
    from .loop.tracking import JointTracking as JointTracking
    from .loop.tracking import Tracking as Tracking
    from .problem import projected_step as projected_step
    from .problem.constraints import AbstractConstraint as AbstractConstraint
    from .problem.constraints import Ball as Ball
    from .problem.constraints import Box as Box
    from .problem.constraints import Product as Product
    from .problem.constraints import Simplex as Simplex
    from .problem.constraints import Unconstrained as Unconstrained
    from .problem.loop_context import LoopContext as LoopContext
    from .problem.memory import Memory as Memory
    from .problem.noise import AbstractProcess as AbstractProcess
    from .problem.noise import Constant as Constant
    from .problem.noise import Gaussian as Gaussian
    from .problem.noise import OrnsteinUhlenbeck as OrnsteinUhlenbeck
    from .problem.noise import PiecewiseConstant as PiecewiseConstant
    from .problem.noise import RandomWalk as RandomWalk
    from .problem.noise import Sinusoid as Sinusoid
    from .problem.noise import Stream as Stream
    from .problem.noise import Uniform as Uniform
    from .problem.scenario import Scenario as Scenario
    from .problem.system import AbstractSystem as AbstractSystem
    from .problem.system import MatchedSystem as MatchedSystem
    from .problem.system import System as System
    from .problem.system import infer_residual as infer_residual
    from .realtime.agent import Agent as Agent
    from .realtime.autopilot import Autopilot as Autopilot
    from .realtime.autopilot import AutopilotRun as AutopilotRun
    from .realtime.history import History as History
    from .realtime.telemetry import Telemetry as Telemetry
    from .regret import AutoWindow as AutoWindow
    from .regret import Bands as Bands
    from .regret import ExactModelGap as ExactModelGap
    from .regret import LocalRegret as LocalRegret
    from .regret import ModelMismatch as ModelMismatch
    from .regret import PathLengths as PathLengths
    from .regret import Perturbations as Perturbations
    from .regret import QuasiRegret as QuasiRegret
    from .regret import StaticRegret as StaticRegret
    from .regret import Surrogate as Surrogate
    from .regret import bands as bands
    from .regret import exact_model_gap as exact_model_gap
    from .regret import local_regret as local_regret
    from .regret import model_mismatch as model_mismatch
    from .regret import path_lengths as path_lengths
    from .regret import perturbations as perturbations
    from .regret import quasi_regret as quasi_regret
    from .regret import static_regret as static_regret
    from .regret import surrogate as surrogate
    from .simulation.checks import ContractionCheck as ContractionCheck
    from .simulation.checks import GradientCheck as GradientCheck
    from .simulation.checks import check_contraction as check_contraction
    from .simulation.checks import check_gradient as check_gradient
    from .simulation.run import Final as Final
    from .simulation.run import Result as Result
    from .simulation.run import Run as Run
    from .simulation.run import SimulationError as SimulationError
    from .simulation.simulator import simulate as simulate
    from .sweeps.design import Design as Design
    from .sweeps.design import Range as Range
    from .sweeps.design import latin_hypercube as latin_hypercube
    from .sweeps.design import random_design as random_design
    from .sweeps.summary import Best as Best
    from .sweeps.summary import best as best
    from .sweeps.sweeper import Sweep as Sweep
    from .sweeps.sweeper import sweep as sweep
    from .theory import Certificate as Certificate
    from .theory import Constants as Constants
    from .theory import Contraction as Contraction
    from .theory import Joint as Joint
    from .theory import LearningRates as LearningRates
    from .theory import Noise as Noise
    from .theory import Sets as Sets
    from .theory import certify as certify
    from .theory import sample_constants as sample_constants
    from .theory import sample_contraction as sample_contraction
    from .theory import suggest_learning_rate as suggest_learning_rate
    from .tuners import GAPS as GAPS
    from .tuners import MGAPS as MGAPS
    from .tuners import OPRF as OPRF
    from .tuners import AbstractTuner as AbstractTuner
    from .tuners import DiffTune as DiffTune
    from .tuners import Fixed as Fixed
    from .tuners import GaussNewton as GaussNewton
    from .tuners import TunerInfo as TunerInfo
    from .tuners import ideal_ogd as ideal_ogd
    from .tuners import suggest_memory as suggest_memory
_NAMES = {
    "": "models policies theory",
    "control.controller": "Controller ControllerState Info",
    "control.guard": "Decision Guard",
    "control.guard_state": "GuardInfo",
    "control.guard_limits": "GuardRule GuardSuggestion suggest_guard",
    "estimators": (
        "RLS AbstractEstimator AutoEstimator EstimatorInfo Frozen GradientEstimator KalmanEstimator Known "
        "NormalizedGradient"
    ),
    "export.arduino_folder": "export_arduino",
    "export.c_folder": "export_c",
    "export.fmu_folder": "export_fmu",
    "export.glue_folders": "export_crazyflie export_px4 export_ros2",
    "export.web_folder": "export_web",
    "foundation.errors": "ArgumentError",
    "foundation.phases": "phase",
    "logs.mapping": "LogMapping LogSignal",
    "logs.plant_log": "PlantLog",
    "logs.reading": "read_log",
    "loop": "quadrotor_rules references robot_rules",
    "loop.commissioning": "Commissioned CommissioningStep commission",
    "loop.control_loop": "Loop",
    "loop.log_replay": "Replayed Saving replay",
    "loop.stability": "Margins",
    "loop.tracking": "AbstractStateCost FlightTracking JointTracking Tracking",
    "problem": "projected_step",
    "problem.constraints": "AbstractConstraint Ball Box Product Simplex Unconstrained",
    "problem.loop_context": "LoopContext",
    "problem.memory": "Memory",
    "problem.noise": (
        "AbstractProcess Constant Gaussian OrnsteinUhlenbeck PiecewiseConstant RandomWalk Sinusoid Stream Uniform"
    ),
    "problem.scenario": "Scenario",
    "problem.system": "AbstractSystem MatchedSystem System infer_residual",
    "realtime.agent": "Agent",
    "realtime.history": "History",
    "realtime.telemetry": "Telemetry",
    "regret": (
        "AutoWindow Bands ExactModelGap LocalRegret ModelMismatch PathLengths Perturbations QuasiRegret "
        "StaticRegret Surrogate bands exact_model_gap local_regret model_mismatch path_lengths perturbations "
        "quasi_regret static_regret surrogate"
    ),
    "simulation.checks": "ContractionCheck GradientCheck check_contraction check_gradient",
    "simulation.run": "Final Result Run SimulationError",
    "simulation.simulator": "simulate",
    "sweeps.design": "Design Range latin_hypercube random_design",
    "sweeps.sweeper": "Sweep sweep",
    "theory": (
        "Certificate Constants Contraction Joint LearningRates Noise Sets certify sample_constants "
        "sample_contraction suggest_learning_rate"
    ),
    "tuners": "GAPS MGAPS OPRF AbstractTuner DiffTune Fixed GaussNewton TunerInfo ideal_ogd suggest_memory",
}
"""The public names of each module; a name that the module does not define is a module itself."""
_NEED_EXTRA = {"realtime.autopilot": "Autopilot AutopilotRun", "sweeps.summary": "Best best"}
"""The same for modules that need an extra. `sweep` and `Sweep` load what they need when called."""
_EXTRAS = {"realtime.autopilot": "mavlink", "sweeps.summary": "experiments"}
_HOMES = {name: home for home, names in (_NAMES | _NEED_EXTRA).items() for name in names.split()}

jax_releases.warn()


def __getattr__(name: str) -> _Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if home in _NEED_EXTRA:
        module = extras.load(home, asked_for=f"selftune.{name}", extra=_EXTRAS[home])
    else:
        module = _import_module(f"{__name__}.{home}".rstrip("."))
    value = vars(module)[name] if name in vars(module) else _import_module(f"{module.__name__}.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
