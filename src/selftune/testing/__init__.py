"""The contract of tuners, estimators, constraints and policies, as checks for code outside of this library."""

from .cases import AbstractCase as AbstractCase
from .cases import ConstraintCase as ConstraintCase
from .cases import EstimatorCase as EstimatorCase
from .cases import PolicyCase as PolicyCase
from .cases import TunerCase as TunerCase
from .contract import POLICY_PROPERTIES as POLICY_PROPERTIES
from .contract import PROPERTIES as PROPERTIES
from .contract import check_constraint as check_constraint
from .contract import check_estimator as check_estimator
from .contract import check_policy as check_policy
from .contract import check_tuner as check_tuner
from .policy_properties import check_derivative as check_derivative
from .policy_properties import check_description as check_description
from .policy_properties import check_finite as check_finite
from .policy_properties import check_stays_in_limits as check_stays_in_limits
from .properties import check_dtype_kept as check_dtype_kept
from .properties import check_jit_equals_eager as check_jit_equals_eager
from .properties import check_one_trace as check_one_trace
from .properties import check_round_trip as check_round_trip
from .properties import check_stays_in_set as check_stays_in_set
from .properties import check_vmap_equals_loop as check_vmap_equals_loop
