"""A small classifier that is trained many times at once, for classifier two-sample tests."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from hsbi.training.compile import jit

# A map over this many trainings at a time keeps memory bounded; more do not run faster on a CPU.
_TRAININGS_AT_ONCE = 16
# Above this many inputs their products are left out: there would be more of them than most samples can fit.
_MAX_INPUTS_WITH_PRODUCTS = 16
# Relative to an input's own; directions below it are left small rather than blown up from rounding errors.
_LEAST_VARIANCE = 1e-5

Params = dict[str, Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classifier:
    """Set the classifier: logistic regression on squares and products of the inputs plus a small network.

    The logit of two Gaussians is quadratic in the inputs, so the first part finds wrong means, scales and correlations
    with few samples; the network is for the rest. There is no early stopping, whose threshold would hide small
    differences.

    Attributes:
        width: Units of the two hidden layers; 0 leaves the network out.
        num_steps: Steps of Adam, with a learning rate that decays to zero.
        batch_size: Rows per step.
        learning_rate: Learning rate at the start.
        weight_decay: Decay of all weights.
    """

    width: int = 32
    num_steps: int = 400
    batch_size: int = 128
    learning_rate: float = 1e-2
    weight_decay: float = 0.1

    def __post_init__(self) -> None:
        """Refuse sizes that cannot be."""
        if self.width < 0 or self.num_steps < 1 or self.batch_size < 1 or self.learning_rate <= 0:
            raise ValueError(
                f"{self} cannot be trained. Expected width >= 0, num_steps >= 1, batch_size >= 1 and a positive "
                "learning_rate."
            )


class Whitening(NamedTuple):
    """The affine map that gives inputs mean zero and unit covariance."""

    center: np.ndarray
    matrix: np.ndarray


def whitening(inputs: np.ndarray) -> Whitening:
    """Find the map for inputs `[rows, inputs]`.

    Draws that follow the data closely leave directions of little variance, in which the samples differ most. Adam would
    take long to find them among correlated inputs.
    """
    scale = inputs.std(0)
    scale = np.where(scale > 0, scale, 1.0)
    center = inputs.mean(0)
    scaled = (inputs - center) / scale
    values, vectors = np.linalg.eigh(scaled.T @ scaled / len(inputs))
    return Whitening(center, (vectors / np.sqrt(np.maximum(values, _LEAST_VARIANCE))) / scale[:, None])


def expand(inputs: np.ndarray, white: Whitening) -> np.ndarray:
    """Whiten inputs `[rows, inputs]` and append their squares and, if they are few, their products."""
    x = (inputs - white.center) @ white.matrix
    if x.shape[1] > _MAX_INPUTS_WITH_PRODUCTS:
        return np.concatenate([x, (x**2 - 1) / np.sqrt(2)], axis=1).astype(np.float32)
    first, second = np.triu_indices(x.shape[1])
    products = x[:, first] * x[:, second]
    # Both kinds have mean zero and variance one for independent standard normal inputs.
    products = np.where(first == second, (products - 1) / np.sqrt(2), products)
    return np.concatenate([x, products], axis=1).astype(np.float32)


def training_rows(folds: np.ndarray, num_folds: int) -> np.ndarray:
    """List the rows outside each fold, `[folds, rows]`; shorter lists are filled up by their own first rows."""
    rows = [np.flatnonzero(folds != fold) for fold in range(num_folds)]
    longest = max(map(len, rows))
    return np.stack([np.resize(row, longest) for row in rows])


@functools.partial(jit, static_argnames=("config", "num_inputs"))
def train(key: Array, features: Array, labels: Array, rows: Array, *, num_inputs: int, config: Classifier) -> Params:
    """Train one classifier per row of labels.

    Args:
        key: A random key.
        features: What `expand` gave, shared by all, `[rows, features]`; the first `num_inputs` go into the network.
        labels: 0 or 1 for every row, `[trainings, rows]`.
        rows: The rows to train on, `[trainings, training rows]`.
        num_inputs: Number of inputs.
        config: The classifier.

    Returns:
        Parameters with a leading axis of trainings.
    """
    keys = jax.random.split(key, labels.shape[0])
    return _map_in_parts(functools.partial(_train_one, features, num_inputs, config), keys, labels, rows)


@functools.partial(jit, static_argnames="num_inputs")
def predict(params: Params, features: Array, *, num_inputs: int) -> Array:
    """Evaluate the log-odds of label 1 by every classifier, `[trainings, rows]`."""
    return _map_in_parts(lambda one: _logits(one, features, num_inputs), params)


def _map_in_parts(function: Callable[..., Any], *arguments: Any) -> Any:
    """Map over leading axes, some at a time; the last part is filled up, so that only one size is compiled."""
    count = len(jax.tree.leaves(arguments)[0])
    size = min(count, _TRAININGS_AT_ONCE)
    num_parts = -(-count // size)
    index = (jnp.arange(num_parts * size) % count).reshape(num_parts, size)
    outputs = jax.lax.map(lambda part: jax.vmap(function)(*jax.tree.map(lambda x: x[part], arguments)), index)
    return jax.tree.map(lambda x: x.reshape(num_parts * size, *x.shape[2:])[:count], outputs)


def _logits(params: Params, features: Array, num_inputs: int) -> Array:
    """Evaluate the log-odds of label 1, `[rows]`."""
    linear = features @ params["linear"] + params["bias"]
    if "out" not in params:
        return linear
    hidden = jnp.tanh(features[:, :num_inputs] @ params["in"] + params["in_bias"])
    hidden = jnp.tanh(hidden @ params["mid"] + params["mid_bias"])
    return linear + hidden @ params["out"]


def _init(key: Array, num_features: int, num_inputs: int, width: int) -> Params:
    """Start from the logit zero: the last layer has no weight yet."""
    params = {"linear": jnp.zeros(num_features), "bias": jnp.zeros(())}
    if width:
        key_in, key_mid, key_bias = jax.random.split(key, 3)
        params |= {
            "in": jax.random.normal(key_in, (num_inputs, width)) / jnp.sqrt(num_inputs),
            "in_bias": jax.random.normal(key_bias, (width,)),
            "mid": jax.random.normal(key_mid, (width, width)) / jnp.sqrt(width),
            "mid_bias": jnp.zeros(width),
            "out": jnp.zeros(width),
        }
    return params


def _train_one(features: Array, num_inputs: int, config: Classifier, key: Array, labels: Array, rows: Array) -> Params:
    key_init, key_batches = jax.random.split(key)
    params = _init(key_init, features.shape[1], num_inputs, config.width)
    schedule = optax.cosine_decay_schedule(config.learning_rate, config.num_steps)
    optimizer = optax.adamw(schedule, weight_decay=config.weight_decay)

    def loss(params: Params, chosen: Array) -> Array:
        return jnp.mean(
            optax.sigmoid_binary_cross_entropy(_logits(params, features[chosen], num_inputs), labels[chosen])
        )

    def step(carry: tuple[Params, optax.OptState], chosen: Array) -> tuple[tuple[Params, optax.OptState], None]:
        params, state = carry
        updates, state = optimizer.update(jax.grad(loss)(params, chosen), state, params)
        return (cast(Params, optax.apply_updates(params, updates)), state), None

    batches = rows[jax.random.randint(key_batches, (config.num_steps, config.batch_size), 0, rows.shape[0])]
    (params, _), _ = jax.lax.scan(step, (params, optimizer.init(params)), batches)
    return params
