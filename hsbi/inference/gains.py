"""Losses of a surrogate's parts on batches and on simulations held out, and the rule by which parts are kept."""

import functools
import math
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from hsbi.inference.rows import Rows
from hsbi.training import jit

# A network is kept if it improves the held-out loss by more than this many standard errors of the improvement.
MIN_GAIN = 1.5
# With fewer rows held out that standard error means nothing.
_MIN_HELD_OUT = 8
# Held-out values whose losses are computed at once.
_MAX_VALIDATED = 2**15


class Stage(Protocol):
    """What a part of a surrogate minimizes, row by row."""

    def per_row(self, params: Any, data: Any) -> Array:
        """Give the loss of every row held out."""
        ...


def helps(stage: Stage, before: Any, after: Any, data: Any, min_gain: float = MIN_GAIN, least: float = 0.0) -> bool:
    """Say whether trained weights beat the weights they started from on simulations held out.

    Args:
        stage: The losses.
        before: The weights without what was trained.
        after: The weights with it.
        data: What the losses need, the rows held out among it.
        min_gain: The gain that is needed, in its own standard errors.
        least: The gain that is needed per row.
    """
    return is_gain(gains(stage, before, after, data), data["held_out"].weights, min_gain, least)


def is_gain(gain: ArrayLike, weights: ArrayLike, min_gain: float = MIN_GAIN, least: float = 0.0) -> bool:
    """Say whether the mean of gains `[rows]` is above zero by so many standard errors, and above the least."""
    gain, weights = np.asarray(gain), np.asarray(weights)
    if gain.size < _MIN_HELD_OUT:
        return False
    mean = np.sum(weights * gain) / np.sum(weights)
    error = np.sqrt(np.sum((weights * (gain - mean)) ** 2)) / np.sum(weights)
    return bool(mean > max(min_gain * error, least))


@functools.partial(jit, static_argnames="stage")
def gains(stage: Stage, before: Any, after: Any, data: Any) -> Array:
    """Give how much less every row held out loses after training."""
    return stage.per_row(before, data) - stage.per_row(after, data)


def in_parts(losses: Callable[[Rows, Array], Array], rows: Rows, key: Array) -> Array:
    """Give the loss of each row, so many values at a time that memory hardly notices."""
    number, *size = rows.values.shape
    most = max(1, _MAX_VALIDATED // math.prod(size))
    if number <= most:
        return losses(rows, key)

    def one(row: Array) -> Array:
        return losses(rows.take(row[None]), jax.random.fold_in(key, row))[0]

    return jax.lax.map(one, jnp.arange(number), batch_size=most)


def draw_rows(key: Array, data: Any, number: int) -> Rows:
    """Draw rows to train on, with noise of their own."""
    row_key, noise_key = jax.random.split(key)
    chosen = data["train"][jax.random.randint(row_key, (number,), 0, data["train"].shape[0])]
    return data["rows"].encode(chosen, data["surrogate"], noise_key)


def average(losses: Array, weights: Array) -> Array:
    """Average losses by weight."""
    return jnp.sum(losses * weights) / jnp.sum(weights)
