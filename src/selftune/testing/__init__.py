"""The contract of tuners, estimators and constraints, as checks for code outside of this library."""

from .cases import AbstractCase as AbstractCase
from .cases import ConstraintCase as ConstraintCase
from .cases import EstimatorCase as EstimatorCase
from .cases import TunerCase as TunerCase
from .contract import PROPERTIES as PROPERTIES
from .contract import check_constraint as check_constraint
from .contract import check_estimator as check_estimator
from .contract import check_tuner as check_tuner
from .properties import check_dtype_kept as check_dtype_kept
from .properties import check_jit_equals_eager as check_jit_equals_eager
from .properties import check_one_trace as check_one_trace
from .properties import check_round_trip as check_round_trip
from .properties import check_stays_in_set as check_stays_in_set
from .properties import check_vmap_equals_loop as check_vmap_equals_loop
