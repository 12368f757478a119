r"""The probability that a simulation gives a usable output, given its parameters.

Data that were observed are valid, so their likelihood is P(valid | parameters) p(y | parameters, valid). Surrogates are
fitted to valid simulations and know the second factor alone; what is here brings back the first. Two classifiers are
trained on all simulations, valid or not: one sees globals and locals, the other the globals alone, which averages over
the prior of the locals. With $v$ and $g$ for them, synthetic data sets are drawn from

$$
p(\theta) \prod_s g_s(\theta) \cdot \prod_s \frac{p(\eta_s | \theta) v_s(\theta, \eta_s)}{g_s(\theta)}
\cdot \prod_s p(y_s | \theta, \eta_s, \text{valid}).
$$
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hsbi.inference.features import ParameterFeatures, fit_features, flatten_parameters
from hsbi.model.structure import Structure
from hsbi.networks.mlp import ResidualMLP, apply, compress
from hsbi.training import Checkpoint, FitConfig, Progress, fit, jit, no_progress

_WIDTH, _DEPTH, _BATCH_SIZE = 32, 2, 256
_CONFIG = FitConfig(num_steps=2000, epoch_steps=100, patience=6, weight_decay=1e-2)
_HELD_OUT = 0.2
# A classifier is kept if it improves the held-out loss by more than this many standard errors of the improvement.
_MIN_GAIN = 1.5
# With fewer failures there is nothing to learn from.
_MIN_FAILED = 5


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Classifier:
    """The probability that a simulation is valid.

    Attributes:
        features: Features of the parameters that it sees.
        bias: The logit of the rate of valid simulations.
        weights: Weights of the network that is added to it.
    """

    features: ParameterFeatures
    bias: Array
    weights: Any

    def log_valid(self, parameters: Array) -> Array:
        """Give the log probability for flattened parameters and covariates, `[..., k]` to `[...]`."""
        return jax.nn.log_sigmoid(_logits(self.weights, self.bias, self.features(parameters)))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Validity:
    """The probability that a site is valid, given its globals and locals, and given its globals alone.

    Attributes:
        given_all: Sees globals and locals; None where locals do not matter or there are none.
        given_globals: Sees the globals; None where they do not matter or there are none.
    """

    given_all: Classifier | None
    given_globals: Classifier | None


def fit_validity(
    key: Array,
    structure: Structure,
    values: dict[str, Array],
    covariates: Array,
    valid: np.ndarray,
    *,
    progress: Progress = no_progress,
    checkpoint: Checkpoint | None = None,
) -> Validity | None:
    """Learn which simulations are valid.

    Args:
        key: A random key.
        structure: The structure of the program.
        values: Latents by name, simulations first.
        covariates: The covariates of the sites that were simulated, `[n, c]`.
        valid: Whether each simulation is, `[n]`.
        progress: Called to show progress.
        checkpoint: Where states of training are kept.

    Returns:
        None where failures are few, or where simulations held out show no dependence on the parameters.
    """
    if min(np.count_nonzero(~valid), np.count_nonzero(valid)) < _MIN_FAILED:
        return None
    keys = jax.random.split(key)
    learn = functools.partial(
        _fit_classifier, values=values, covariates=covariates, valid=valid, progress=progress, checkpoint=checkpoint
    )
    names = (*structure.globals, *structure.locals)
    given_all = learn(keys[0], names, name="validity given all latents") if structure.locals else None
    given_globals = learn(keys[1], structure.globals, name="validity given globals") if structure.globals else None
    if given_all is None and given_globals is None:
        return None
    return Validity(given_all=given_all, given_globals=given_globals)


def _fit_classifier(
    key: Array,
    names: tuple[str, ...],
    *,
    values: dict[str, Array],
    covariates: Array,
    valid: np.ndarray,
    name: str,
    progress: Progress,
    checkpoint: Checkpoint | None,
) -> Classifier | None:
    order_key, init_key, fit_key = jax.random.split(key, 3)
    parameters = flatten_parameters(names, values, covariates)
    features = fit_features(names, parameters, None)
    rows = features(parameters)
    target = jnp.asarray(valid, jnp.float32)
    order = jax.random.permutation(order_key, rows.shape[0])
    held_out, kept = jnp.split(order, [max(1, int(_HELD_OUT * rows.shape[0]))])
    rate = float(np.clip(valid.mean(), 1e-4, 1 - 1e-4))
    bias = jnp.asarray(np.log(rate / (1 - rate)), jnp.float32)
    data = {"bias": bias, "train": (rows[kept], target[kept]), "held_out": (rows[held_out], target[held_out])}
    start = _initialize(init_key, rows[:1])
    result = fit(fit_key, start, _Classify(), data, _CONFIG, name=name, progress=progress, checkpoint=checkpoint)
    gain = np.asarray(_losses(start, bias, *data["held_out"]) - _losses(result.params, bias, *data["held_out"]))
    error = gain.std() / np.sqrt(gain.size)
    if not gain.mean() > _MIN_GAIN * error:
        return None
    return Classifier(features=features, bias=bias, weights=result.params)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Classify:
    """Cross entropy of validity."""

    def loss(self, params: Any, key: Array, data: Any) -> Array:
        rows, target = data["train"]
        batch = jax.random.randint(key, (_BATCH_SIZE,), 0, target.shape[0])
        return jnp.mean(_cross_entropy(params, data["bias"], rows[batch], target[batch]))

    def validate(self, params: Any, data: Any) -> Array:
        return jnp.mean(_cross_entropy(params, data["bias"], *data["held_out"]))


def _network() -> ResidualMLP:
    return ResidualMLP(_WIDTH, _DEPTH, 1, zero=True)


@jit
def _initialize(key: Array, rows: Array) -> Any:
    return _network().init(key, compress(rows))


def _logits(weights: Any, bias: Array, features: Array) -> Array:
    return bias + apply(_network(), weights, compress(features))[..., 0]


def _cross_entropy(weights: Any, bias: Array, features: Array, target: Array) -> Array:
    logits = _logits(weights, bias, features)
    return -target * jax.nn.log_sigmoid(logits) - (1.0 - target) * jax.nn.log_sigmoid(-logits)


_losses = jit(_cross_entropy)
