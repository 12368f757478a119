"""Refine the globals' location and scale by what the surrogates say of this data set.

A network sees thousands of data sets and is right on average; small differences between data sets, which move a narrow
posterior by much of its width, are hard for it. The surrogates' approximate likelihood sees them exactly: from the
network's location, Newton steps on it give a second opinion, and a regression that is solved on synthetic data sets
says how far to follow it.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from hsbi.inference.arrays import Coordinates
from hsbi.inference.batch import Observed
from hsbi.inference.linear import Linear
from hsbi.inference.linearize import log_marginal
from hsbi.inference.surrogate import Surrogate
from hsbi.model.program import Program
from hsbi.networks.heads import Gaussian, color
from hsbi.networks.triangular import cholesky, solve_lower, solve_upper

# Newton steps, each of at most so many of the network's scales, and the least curvature believed in its units.
_STEPS = 3
_MAX_STEP, _MAX_SHIFT, _MIN_CURVATURE = 1.5, 4.0, 0.1


class Opinion(NamedTuple):
    """Where the surrogates' likelihood peaks, in units of the network's Gaussian.

    Attributes:
        mode: `[d]`.
        log_scale: The log of the standard deviations that its curvature there implies, `[d]`.
    """

    mode: Array
    log_scale: Array

    def features(self) -> Array:
        """Give what the regression sees, `[2 d]`."""
        return jnp.concatenate([self.mode, self.log_scale], axis=-1)


def seek_mode(
    program: Program,
    coordinates: Coordinates,
    surrogates: tuple[Surrogate, ...],
    gaussian: Gaussian,
    observed: Observed,
) -> Opinion:
    """Climb the approximate posterior of one data set's globals by damped Newton steps from the network's location.

    The coordinates of the globals are taken to be standard normal a priori.
    """
    dim = gaussian.loc.shape[-1]

    def log_density(residual: Array) -> Array:
        globals_ = color(gaussian, residual)
        sites = log_marginal(program, coordinates, surrogates, globals_, observed)
        return jnp.sum(jnp.where(observed.site_mask, sites, 0.0)) - 0.5 * jnp.sum(globals_**2)

    def curve(residual: Array) -> tuple[Array, Array]:
        hessian, slope = jax.jacfwd(_with_value(jax.jacfwd(log_density)), has_aux=True)(residual)
        precision = jnp.nan_to_num(-0.5 * (hessian + hessian.T))
        return jnp.nan_to_num(slope), cholesky(precision, min_eigenvalue=_MIN_CURVATURE)

    def step(mode: Array, _: None) -> tuple[Array, Array]:
        slope, factor = curve(mode)
        move = solve_upper(factor, solve_lower(factor, slope))
        moved = mode + jnp.clip(jnp.nan_to_num(move), -_MAX_STEP, _MAX_STEP)
        return jnp.clip(moved, -_MAX_SHIFT, _MAX_SHIFT), factor

    mode, factors = jax.lax.scan(step, jnp.zeros(dim), None, length=_STEPS)
    return Opinion(mode, -jnp.log(jnp.diagonal(factors[-1])))


def _with_value(function: Callable[[Array], Array]) -> Callable[[Array], tuple[Array, Array]]:
    def both(x: Array) -> tuple[Array, Array]:
        value = function(x)
        return value, value

    return both


class Refined(NamedTuple):
    """A change of location and scale in units of the network's Gaussian.

    Attributes:
        shift: `[..., d]`.
        log_factor: `[..., d]`.
    """

    shift: Array
    log_factor: Array

    def whiten(self, residual: Array) -> Array:
        """Give the residual that is left, from one of the network's Gaussian."""
        return (residual - self.shift) * jnp.exp(-self.log_factor)

    def color(self, residual: Array) -> Array:
        """Undo `whiten`."""
        return self.shift + jnp.exp(self.log_factor) * residual


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Refinement:
    """How far to follow the surrogates' opinion.

    Attributes:
        linear: Regression of the residuals on the opinion.
    """

    linear: Linear

    def __call__(self, opinion: Opinion) -> Refined:
        """Turn an opinion into a change of location and scale."""
        return Refined(*self.linear.predict(opinion.features()))
