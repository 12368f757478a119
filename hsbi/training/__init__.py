"""Training: one loop for every estimator."""

from hsbi.training.fit import FitConfig, FitResult, fit
from hsbi.training.progress import Bar, Progress, no_progress, show_progress

__all__ = ["Bar", "FitConfig", "FitResult", "Progress", "fit", "no_progress", "show_progress"]
