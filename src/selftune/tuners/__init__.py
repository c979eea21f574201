"""Tuners (ALG): one file each."""

from .base import AbstractTuner as AbstractTuner
from .base import TunerInfo as TunerInfo
from .difftune import DiffTune as DiffTune
from .fixed import Fixed as Fixed
from .gaps import GAPS as GAPS
from .gauss_newton import GaussNewton as GaussNewton
from .gauss_newton import suggest_memory as suggest_memory
from .ideal import ideal_ogd as ideal_ogd
from .mgaps import MGAPS as MGAPS
from .oprf import OPRF as OPRF
