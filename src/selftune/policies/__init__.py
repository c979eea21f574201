"""Ready-made policies: PID, cascades, state feedback and others, and observers for output feedback. One file each."""

from .anti_windup import AbstractAntiWindup as AbstractAntiWindup
from .anti_windup import BackCalculation as BackCalculation
from .anti_windup import Clamping as Clamping
from .anti_windup import Windup as Windup
from .base import AbstractPolicy as AbstractPolicy
from .base import Inputs as Inputs
from .base import Parameter as Parameter
from .cascade import Cascade as Cascade
from .computed_torque import ComputedTorque as ComputedTorque
from .filters import AbstractFilter as AbstractFilter
from .filters import Filtered as Filtered
from .filters import LowPass as LowPass
from .filters import Notch as Notch
from .geometric import Geometric as Geometric
from .gravity_pd import GravityPD as GravityPD
from .lead_lag import LeadLag as LeadLag
from .observers import AbstractObserver as AbstractObserver
from .observers import Luenberger as Luenberger
from .observers import VelocityFilter as VelocityFilter
from .pid import PID as PID
from .robot import AbstractRobotPolicy as AbstractRobotPolicy
from .robot import RobotNumbers as RobotNumbers
from .state_feedback import StateFeedback as StateFeedback
from .velocity_cascade import VelocityCascade as VelocityCascade
