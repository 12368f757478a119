"""Learn how far the globals follow the surrogates' opinion, on synthetic data sets that are kept."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hsbi.flow import flow_matching_loss
from hsbi.inference.batch import Observed, Synthetic, at_sites
from hsbi.inference.linear import fit_linear
from hsbi.inference.posterior import Level, Posterior
from hsbi.inference.refine import Opinion, Refinement, seek_mode
from hsbi.model.program import Program
from hsbi.networks.heads import whiten
from hsbi.networks.mlp import apply
from hsbi.training import jit

# Data sets that are kept: about as many as have so many sites in all, within bounds.
_KEPT_SITES, _MIN_KEPT, _MAX_KEPT = 2**19, 2048, 16_384
_HELD_OUT = 0.2
_STEPS_PER_BATCH = 8
# Data sets whose residuals are larger do not steer: they are of the far tails of a heavy-tailed prior.
_MAX_RESIDUAL = 6.0
# The opinion is followed if that improves the held-out loss by more than this many standard errors.
_MIN_GAIN = 2.0


class Kept(NamedTuple):
    """What is kept of data sets, one per row.

    Attributes:
        context: What the flow is conditioned on, `[rows, context]`.
        residual: What the flow learns, `[rows, d]`.
        held_out: The same two for validation.
        key: The key of the validation's noise.
    """

    context: Array
    residual: Array
    held_out: tuple[Array, Array]
    key: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowsFlow:
    """Flow matching on residuals that are kept."""

    level: Level
    batch_size: int

    def loss(self, params: Any, key: Array, data: Kept) -> Array:
        """Give the loss of a batch of rows."""
        row_key, noise_key = jax.random.split(key)
        rows = jax.random.randint(row_key, (self.batch_size,), 0, data.residual.shape[0])
        return self._of_rows(params, noise_key, data.context[rows], data.residual[rows])

    def validate(self, params: Any, data: Kept) -> Array:
        """Give the loss of rows held out."""
        return self._of_rows(params, data.key, *data.held_out)

    def _of_rows(self, params: Any, key: Array, context: Array, residual: Array) -> Array:
        mask = jnp.all(jnp.abs(residual) < _MAX_RESIDUAL, axis=-1).astype(residual.dtype)
        return flow_matching_loss(key, self.level.velocity(params, context), residual, mask=mask).mean


def fit_refinement(
    key: Array, modules: Level, program: Program, posterior: Posterior, source: Synthetic, head: Any, num_sets: int
) -> tuple[Refinement | None, Kept | None]:
    """Regress the residuals of the globals on the surrogates' opinion, and keep it if held-out data sets agree.

    Args:
        key: A random key.
        modules: The globals' modules.
        program: The program.
        posterior: The posterior, without the globals' weights.
        source: Where data sets come from.
        head: The globals' weights of location and scale.
        num_sets: Data sets in a batch.

    Returns:
        The refinement and the data sets with residuals as it leaves them, or None twice if it does not help.
    """
    draw_key, noise_key = jax.random.split(key)
    wanted = max(_MIN_KEPT, min(_MAX_KEPT, _KEPT_SITES // source.num_sites[1]))
    # No more than a share of what the network was trained on, so that brief settings stay brief.
    num_batches = min(-(-wanted // num_sets), max(2, modules.config.head.num_steps // _STEPS_PER_BATCH))
    context, residual, opinion = _collect(modules, num_sets, num_batches, head, draw_key, program, posterior, source)
    num_held_out = int(_HELD_OUT * residual.shape[0])
    refinement, gains = _solve(residual, opinion, num_held_out)
    gains = np.asarray(gains)
    if not np.mean(gains) > _MIN_GAIN * np.std(gains) / np.sqrt(gains.size):
        return None, None
    left = refinement(opinion).whiten(residual)
    held_out = (context[:num_held_out], left[:num_held_out])
    return refinement, Kept(context[num_held_out:], left[num_held_out:], held_out, noise_key)


@functools.partial(jit, static_argnames=("modules", "num_sets", "num_batches"))
def _collect(
    modules: Level,
    num_sets: int,
    num_batches: int,
    head: Any,
    key: Array,
    program: Program,
    posterior: Posterior,
    source: Synthetic,
) -> tuple[Array, Array, Opinion]:
    """Draw data sets and give contexts, residuals and opinions, one row for each."""

    def collect(key: Array) -> tuple[Array, Array, Opinion]:
        batch = source.draw(key, num_sets)
        task = posterior.task(program, batch, modules.level)
        context, gaussian = apply(modules.net, head, task.features)

        def ask(index: Array, gaussian: Any, observed: Observed) -> Opinion:
            own, _ = at_sites(program, observed.design, index)
            return seek_mode(own, posterior.coordinates, posterior.surrogates, gaussian, observed)

        return context, whiten(gaussian, task.target), jax.vmap(ask)(batch.index, gaussian, batch.observed)

    rows = jax.lax.map(collect, jax.random.split(key, num_batches))
    return jax.tree.map(lambda array: array.reshape(-1, *array.shape[2:]), rows)


@functools.partial(jit, static_argnames="num_held_out")
def _solve(residual: Array, opinion: Opinion, num_held_out: int) -> tuple[Refinement, Array]:
    """Solve the regression, and give the gain in log density of each data set held out."""
    usable = jnp.all(jnp.abs(residual) < _MAX_RESIDUAL, axis=-1)
    features, weights = opinion.features(), usable.astype(residual.dtype)
    refinement = Refinement(linear=fit_linear(features[num_held_out:], residual[num_held_out:], weights[num_held_out:]))
    change = refinement(opinion)
    left = change.whiten(residual)
    gains = 0.5 * residual**2 - 0.5 * left**2 - change.log_factor
    return refinement, jnp.where(usable, jnp.sum(gains, axis=-1), 0.0)[:num_held_out]
