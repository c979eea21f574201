"""The quantities that the paper measures, as plain functions of (system, scenario, run or thetas)."""

from .confidence import Bands as Bands
from .confidence import bands as bands
from .gap import ExactModelGap as ExactModelGap
from .gap import exact_model_gap as exact_model_gap
from .local import LocalRegret as LocalRegret
from .local import local_regret as local_regret
from .mismatch import ModelMismatch as ModelMismatch
from .mismatch import model_mismatch as model_mismatch
from .path import PathLengths as PathLengths
from .path import path_lengths as path_lengths
from .perturbation import Perturbations as Perturbations
from .perturbation import perturbations as perturbations
from .quasi import QuasiRegret as QuasiRegret
from .quasi import quasi_regret as quasi_regret
from .static import StaticRegret as StaticRegret
from .static import static_regret as static_regret
from .surrogate_cost import AutoWindow as AutoWindow
from .surrogate_cost import Surrogate as Surrogate
from .surrogate_cost import surrogate as surrogate
