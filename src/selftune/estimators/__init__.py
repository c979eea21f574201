"""Estimators (EST) of the unknown part of the dynamics: one file each."""

from .auto import AutoEstimator as AutoEstimator
from .base import AbstractEstimator as AbstractEstimator
from .base import EstimatorInfo as EstimatorInfo
from .frozen import Frozen as Frozen
from .gradient import GradientEstimator as GradientEstimator
from .kalman import KalmanEstimator as KalmanEstimator
from .known import Known as Known
from .normalized_gradient import NormalizedGradient as NormalizedGradient
from .rls import RLS as RLS
