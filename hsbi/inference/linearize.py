"""What would follow for the locals of a site if surrogates were Gaussian and straight."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from hsbi.inference.arrays import Coordinates, Latents
from hsbi.inference.batch import Observed, site_features
from hsbi.inference.surrogate import Surrogate
from hsbi.model.program import Program
from hsbi.networks.triangular import cholesky, solve_lower, solve_upper

# Gauss-Newton rounds: one is exact for a straight surrogate, further ones follow its bends.
_ROUNDS = 2
# The mean is kept within this many prior scales; a far extrapolation of a straight line helps nobody.
MAX_MEAN = 6.0
_MAX_SCALED = 1e6


class Linearized(NamedTuple):
    """A Gaussian approximation of each site's locals.

    Attributes:
        mean: `[S, d]`.
        factor: The lower Cholesky factor of the precision, `[S, d, d]`.
    """

    mean: Array
    factor: Array

    def whiten(self, locals_: Array) -> Array:
        """Give the residuals of locals `[S, d]`, standard normal if the approximation is exact."""
        return jnp.einsum("sij,si->sj", self.factor, locals_ - self.mean)

    def color(self, residual: Array) -> Array:
        """Undo `whiten`."""
        return self.mean + solve_upper(self.factor, residual)

    def features(self) -> Array:
        """Give mean and log precision for networks, `[S, 2 d]`."""
        diagonal = jnp.diagonal(self.factor, axis1=-2, axis2=-1)
        return jnp.concatenate([self.mean, jnp.log(diagonal)], axis=-1)


def linearize(
    program: Program,
    coordinates: Coordinates,
    surrogates: tuple[Surrogate, ...],
    globals_: Array,
    observed: Observed,
    *,
    start: Array | None = None,
    num_rounds: int = _ROUNDS,
) -> Linearized:
    """Approximate the posterior of the locals of one data set given its globals, by Gauss-Newton on the surrogates.

    With surrogate location f(z), scale s, Jacobian J of f / s and a standard normal prior of the coordinates z, the
    precision is I + J^T J and the mean solves it for J^T (r + J z), r the scaled residual at z.

    Args:
        program: The program.
        coordinates: Coordinates of its latents.
        surrogates: The surrogates.
        globals_: Coordinates of the globals, `[d_g]`.
        observed: The data set.
        start: Where the locals start, `[S, d]`; at the center of the prior by default.
        num_rounds: Rounds of Gauss-Newton.
    """
    num_sites, dim = observed.site_mask.shape[0], coordinates.dim("local")
    values, known, predict = _problem(program, coordinates, surrogates, globals_, observed)

    # Sites do not see each other, so one tangent serves all of them.
    tangents = jnp.broadcast_to(jnp.eye(dim)[:, None, :], (dim, num_sites, dim))
    identity = jnp.broadcast_to(jnp.eye(dim), (num_sites, dim, dim))

    def improve(_: int, state: tuple[Array, Array]) -> tuple[Array, Array]:
        mean = state[0]
        location, log_scale = predict(mean)
        slopes = jax.vmap(lambda tangent: jax.jvp(lambda z: predict(z)[0], (mean,), (tangent,))[1])(tangents)
        weight = jnp.exp(-log_scale)
        slopes = jnp.where(known[None], bound_scaled(slopes * weight[None]), 0.0)
        residual = jnp.where(known, bound_scaled((values - location) * weight), 0.0)
        precision = identity + jnp.einsum("ism,jsm->sij", slopes, slopes)
        pull = jnp.einsum("ism,sm->si", slopes, residual + jnp.einsum("jsm,sj->sm", slopes, mean))
        factor = cholesky(precision, min_eigenvalue=1.0)
        return jnp.clip(solve_upper(factor, solve_lower(factor, pull)), -MAX_MEAN, MAX_MEAN), factor

    start = jnp.zeros((num_sites, dim)) if start is None else start
    mean, factor = jax.lax.fori_loop(0, num_rounds, improve, (start, identity))
    return Linearized(mean, factor)


def _problem(
    program: Program,
    coordinates: Coordinates,
    surrogates: tuple[Surrogate, ...],
    globals_: Array,
    observed: Observed,
) -> tuple[Array, Array, Callable[[Array], tuple[Array, Array]]]:
    """Give data, which of them are known, and their location and log scale as a function of the locals, `[S, m]`."""
    num_sites = observed.site_mask.shape[0]
    values = jnp.concatenate([observed.values[s.shape.name].reshape(num_sites, -1) for s in surrogates], axis=-1)
    # What is not known must not pull, and must not add precision either.
    known = jnp.concatenate([observed.known(s.shape.name).reshape(num_sites, -1) for s in surrogates], axis=-1)
    known &= jnp.isfinite(values)

    def predict(locals_: Array) -> tuple[Array, Array]:
        decoded = coordinates.decode(program, Latents(globals_, locals_))
        parts = [s.predict(site_features(program, s, decoded, observed.design)) for s in surrogates]
        location = jnp.concatenate([part[0].reshape(num_sites, -1) for part in parts], axis=-1)
        return location, jnp.concatenate([part[1].reshape(num_sites, -1) for part in parts], axis=-1)

    return values, known, predict


def bound_scaled(scaled: Array) -> Array:
    """Keep what an extrapolated surrogate gives so small that float32 can square and add it."""
    return jnp.clip(jnp.nan_to_num(scaled), -_MAX_SCALED, _MAX_SCALED)
