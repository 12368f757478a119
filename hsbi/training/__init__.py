"""Training: one loop for every estimator."""

from hsbi.training.checkpoint import Checkpoint
from hsbi.training.compile import jit
from hsbi.training.fit import FitConfig, FitResult, fit, validate
from hsbi.training.progress import Bar, Progress, no_progress, show_progress

__all__ = [
    "Bar",
    "Checkpoint",
    "FitConfig",
    "FitResult",
    "Progress",
    "fit",
    "jit",
    "no_progress",
    "show_progress",
    "validate",
]
