"""Everything the paper measures, as plain functions of (system, scenario, run or thetas)."""

from .bands import Bands as Bands
from .bands import bands as bands
from .exact_model_gap import ExactModelGap as ExactModelGap
from .exact_model_gap import exact_model_gap as exact_model_gap
from .local_regret import LocalRegret as LocalRegret
from .local_regret import local_regret as local_regret
from .model_mismatch import ModelMismatch as ModelMismatch
from .model_mismatch import model_mismatch as model_mismatch
from .path_lengths import PathLengths as PathLengths
from .path_lengths import path_lengths as path_lengths
from .perturbations import Perturbations as Perturbations
from .perturbations import perturbations as perturbations
from .quasi_regret import QuasiRegret as QuasiRegret
from .quasi_regret import quasi_regret as quasi_regret
from .static_regret import StaticRegret as StaticRegret
from .static_regret import static_regret as static_regret
from .surrogate import Surrogate as Surrogate
from .surrogate import surrogate as surrogate
