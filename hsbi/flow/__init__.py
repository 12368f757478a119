"""Flow matching for any velocity callable: path, loss, solvers and densities.

A velocity is a callable `velocity(x, t)` that returns an array like `x`. Time `t` is a scalar (what the solvers pass)
or has the leading axes of `x` (what the loss passes). Time runs from the base N(0, I) at 0 to the data at 1.
"""

from hsbi.flow.density import Draws, log_prob, push_forward
from hsbi.flow.loss import Loss, draw_times, flow_matching_loss, masked_loss
from hsbi.flow.ode import Solution, integrate, integrate_adaptive, integrate_with_error
from hsbi.flow.path import (
    SIGMA_MIN,
    align,
    conditional_velocity,
    gaussian_velocity,
    interpolate,
    target_velocity,
)

__all__ = [
    "SIGMA_MIN",
    "Draws",
    "Loss",
    "Solution",
    "align",
    "conditional_velocity",
    "draw_times",
    "flow_matching_loss",
    "gaussian_velocity",
    "integrate",
    "integrate_adaptive",
    "integrate_with_error",
    "interpolate",
    "log_prob",
    "masked_loss",
    "push_forward",
    "target_velocity",
]
