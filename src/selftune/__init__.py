"""Controllers that tune themselves while they run."""

from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from . import _extras, _jax_releases
from .agent import Agent as Agent
from .checks import ContractionCheck as ContractionCheck
from .checks import GradientCheck as GradientCheck
from .checks import check_contraction as check_contraction
from .checks import check_gradient as check_gradient
from .constraint import AbstractConstraint as AbstractConstraint
from .constraint import Ball as Ball
from .constraint import Box as Box
from .constraint import Product as Product
from .constraint import Simplex as Simplex
from .constraint import Unconstrained as Unconstrained
from .controller import Controller as Controller
from .controller import ControllerState as ControllerState
from .controller import Info as Info
from .design import Design as Design
from .design import Range as Range
from .design import latin_hypercube as latin_hypercube
from .design import random_design as random_design
from .estimators import RLS as RLS
from .estimators import AbstractEstimator as AbstractEstimator
from .estimators import EstimatorInfo as EstimatorInfo
from .estimators import Frozen as Frozen
from .estimators import GradientEstimator as GradientEstimator
from .estimators import KalmanEstimator as KalmanEstimator
from .estimators import Known as Known
from .guard import Decision as Decision
from .guard import Guard as Guard
from .guard import GuardInfo as GuardInfo
from .native.export import export_c as export_c
from .process import AbstractProcess as AbstractProcess
from .process import Constant as Constant
from .process import Gaussian as Gaussian
from .process import OrnsteinUhlenbeck as OrnsteinUhlenbeck
from .process import PiecewiseConstant as PiecewiseConstant
from .process import RandomWalk as RandomWalk
from .process import Sinusoid as Sinusoid
from .process import Stream as Stream
from .process import Uniform as Uniform
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
from .run import Final as Final
from .run import Result as Result
from .run import Run as Run
from .run import SimulationError as SimulationError
from .scenario import Scenario as Scenario
from .simulate import simulate as simulate
from .sweep import Sweep as Sweep
from .sweep import sweep as sweep
from .system import MatchedSystem as MatchedSystem
from .system import System as System
from .system import infer_residual as infer_residual
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
from .tuners import TunerInfo as TunerInfo
from .tuners import ideal_ogd as ideal_ogd

_jax_releases.warn()

if _TYPE_CHECKING:
    from .sweep_summary import Best as Best
    from .sweep_summary import best as best

# These need the extra `experiments`: their modules are imported when one of the names is first asked for. `sweep` and
# `Sweep` have no such package among their imports, and load what they need when they are called.
_LAZY = {"Best": "sweep_summary", "best": "sweep_summary"}


def __getattr__(name: str) -> _Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_extras.load(_LAZY[name], asked_for=f"selftune.{name}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
