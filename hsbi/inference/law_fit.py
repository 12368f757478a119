"""Training of a surrogate's law of residuals, together with its location and scale."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hsbi.inference.gains import average, draw_rows, helps, in_parts, is_gain
from hsbi.inference.law import Law
from hsbi.inference.mixture_fit import SIZES, fit_mixtures
from hsbi.inference.rows import Rows
from hsbi.inference.surrogate import MAX_LOG_SCALE, MIN_LOG_SCALE, Surrogate
from hsbi.training import Checkpoint, Progress, fit, jit

# Residuals of wider events are left to a flow.
_MAX_WIDTH = 12
# Residuals that mixtures of several sizes are fitted to, at most.
_MAX_RESIDUALS = 2**13
# A larger mixture has to gain this many standard errors on held-out simulations.
_MIN_SIZE_GAIN = 1.5
# A law, and a network that lets it follow the features, have to gain this many standard errors, and this much per
# simulation in nats: less would not be seen in a posterior.
_MIN_GAIN, _LEAST_NATS = 3.0, 0.01
# Entries depend on each other by the features if a chi-squared statistic exceeds its mean by so many deviations.
_MIN_EVIDENCE, _MAX_RESIDUAL = 6.0, 6.0
_RIDGE = 1e-6


def can_have_law(surrogate: Surrogate) -> bool:
    """Say whether a surrogate's residuals are continuous, few at a time, and independent from point to point."""
    plain = surrogate.noise is None and not surrogate.transform.is_discrete
    return plain and surrogate.shape.width <= _MAX_WIDTH and not surrogate.networks.coupled


def fit_law(
    key: Array,
    surrogate: Surrogate,
    data: Any,
    some: Rows,
    *,
    name: str,
    progress: Progress,
    checkpoint: Checkpoint | None,
) -> tuple[Surrogate, dict[str, np.ndarray]]:
    """Find the law of a surrogate's residuals, and train it together with location and scale.

    Mixtures of several sizes are fitted to the residuals. The smallest that does about as well as the best is trained
    by likelihood, first as one law for all simulations, then with a network that lets it follow the features, which
    also starts from a single Gaussian. Each is kept only if it helps.

    Args:
        key: A random key.
        surrogate: The surrogate, location and scale fitted.
        data: Simulations, those held out among them.
        some: Simulations to start from.
        name: What progress is called.
        progress: Called to show progress.
        checkpoint: Where the states of training are kept.

    Returns:
        The surrogate, unchanged if no law helps, and the losses by epoch of what was trained.
    """
    em_key, init_key, *keys = jax.random.split(key, 5)
    config = surrogate.networks.config
    laws = _start(em_key, surrogate, some)
    stage = _Law(batch_size=config.batch_size)
    data = {**data, "units": _standard_errors(surrogate, some)}
    kept = _params(surrogate, None)
    chosen = _choose_size(np.asarray(_all_losses(stage, surrogate, laws, data)), data["held_out"].weights)
    losses: dict[str, np.ndarray] = {}

    def train(own: Array, start: Any, label: str) -> Any:
        watch = {"progress": progress, "checkpoint": checkpoint}
        result = fit(own, start, stage, data, config.correction, name=f"{name}: {label}", **watch)
        losses[label] = result.losses
        return result.params

    constant = train(keys[0], _params(surrogate, _take(laws, chosen)), "law")
    if helps(stage, kept, constant, data, _MIN_GAIN, _LEAST_NATS):
        kept = constant
    simple = _params(surrogate, _take(laws, 0))
    pairs = _depend(surrogate, some)
    starts = {
        "law by features": _follow(init_key, surrogate, constant, None, some),
        "normal by features": _follow(init_key, surrogate, simple, pairs, some),
    }
    if chosen == 0:
        del starts["law by features"]
    if not pairs.any():
        del starts["normal by features"]
    for own, (label, start) in zip(keys[1:], starts.items(), strict=False):
        following = train(own, start, label)
        if helps(stage, kept, following, data, _MIN_GAIN, _LEAST_NATS):
            kept = following
    return _with(surrogate, kept, data["units"]), losses


def _params(surrogate: Surrogate, law: Law | None) -> dict[str, Any]:
    shift = jnp.zeros_like(surrogate.linear.location)
    return {"shift": shift, "correction": surrogate.correction, "law": law}


def _with(surrogate: Surrogate, params: dict[str, Any], units: Array) -> Surrogate:
    """Give the surrogate with such parameters.

    The linear location moves in units of its standard errors, `[d, F, F]`, where its scales span decades steps of any
    other size would leave what regression has found.
    """
    moved = surrogate.linear.location + jnp.einsum("dij,jd->id", units, params["shift"])
    linear = surrogate.linear._replace(location=moved)
    return dataclasses.replace(surrogate, linear=linear, correction=params["correction"], law=params["law"])


def _standard_errors(surrogate: Surrogate, rows: Rows) -> Array:
    """Give factors C of the covariance C C^T of the coefficients of every column's location, `[d, F, F]`."""
    features = np.asarray(rows.features, float).reshape(-1, rows.features.shape[-1])
    design = np.concatenate([features, np.ones((len(features), 1))], axis=-1)
    log_scale = np.asarray(surrogate.linear.predict(rows.features)[1], float).reshape(len(design), -1)
    weights = np.repeat(np.asarray(rows.weights, float), rows.values.shape[1])
    factors = []
    for column in log_scale.T:
        scaled = design * (np.sqrt(weights) * np.exp(-np.clip(column, MIN_LOG_SCALE, MAX_LOG_SCALE)))[:, None]
        length = np.linalg.norm(scaled, axis=0) + 1e-12
        gram = (scaled / length).T @ (scaled / length) + _RIDGE * np.eye(len(length))
        factors.append(np.linalg.inv(np.linalg.cholesky(gram)).T / length[:, None])
    return jnp.asarray(np.stack(factors), jnp.float32)


def _take(laws: Law, number: int) -> Law:
    """Take one of the stacked laws, without the parts that have no share."""
    return jax.tree.map(lambda array: array[number, : SIZES[number]], laws)


def _choose_size(losses: np.ndarray, weights: Array) -> int:
    """Choose the size of the mixture by losses `[sizes, rows]`: a larger one has to beat the best smaller one."""
    chosen = 0
    for number in range(1, len(losses)):
        if is_gain(losses[chosen] - losses[number], weights, _MIN_SIZE_GAIN):
            chosen = number
    return chosen


@functools.partial(jit, static_argnames="stage")
def _all_losses(stage: "_Law", surrogate: Surrogate, laws: Law, data: Any) -> Array:
    return jax.lax.map(lambda law: stage.per_row(_params(surrogate, law), data), laws)


@jit
def _start(key: Array, surrogate: Surrogate, rows: Rows) -> Law:
    """Fit mixtures of all sizes to the residuals of some rows."""
    residual = _residuals(surrogate, rows)
    weights = jnp.repeat(rows.weights, rows.values.shape[1])
    most = min(_MAX_RESIDUALS, residual.shape[0])
    return fit_mixtures(key, residual[:most], weights[:most])


def _residuals(surrogate: Surrogate, rows: Rows) -> Array:
    first, second = surrogate.parameters(rows.features)
    return ((rows.values - first) * jnp.exp(-second)).reshape(-1, rows.values.shape[-1])


def _depend(surrogate: Surrogate, rows: Rows) -> np.ndarray:
    """Say which pairs of entries have a product of residuals that depends on the features, `[d (d - 1) / 2]`.

    Products are regressed on the features and their squares. With R^2 the share of their variance that is explained by
    p columns, n R^2 is about chi-squared with p degrees of freedom if nothing is.
    """
    features = np.asarray(rows.features, float).reshape(-1, rows.features.shape[-1])
    residual = np.clip(np.asarray(jit(_residuals)(surrogate, rows), float), -_MAX_RESIDUAL, _MAX_RESIDUAL)
    first, second = np.tril_indices(residual.shape[-1], -1)
    design = np.concatenate([features, features**2], axis=-1)
    weights = np.repeat(np.asarray(rows.weights, float), rows.values.shape[1])[:, None]
    products = residual[:, first] * residual[:, second]
    products, design = (
        np.sqrt(weights) * (array - np.average(array, axis=0, weights=weights[:, 0])) for array in (products, design)
    )
    explained = design @ np.linalg.lstsq(design, products, rcond=1e-8)[0]
    degrees = design.shape[1]
    statistic = len(design) * np.sum(explained**2, axis=0) / np.maximum(np.sum(products**2, axis=0), 1e-30)
    return statistic > degrees + _MIN_EVIDENCE * math.sqrt(2 * degrees)


def _follow(key: Array, surrogate: Surrogate, params: dict[str, Any], pairs: np.ndarray | None, rows: Rows) -> Any:
    """Add a network to a law: it drives all numbers, or the chosen slopes and the scales of what they predict."""
    law = params["law"]
    number, dim = law.loc.shape
    size = 1 + 2 * dim + law.slopes.shape[-1]
    active = np.arange(number * size)
    if pairs is not None:
        predicted = np.unique(np.tril_indices(dim, -1)[0][pairs])
        active = np.concatenate([1 + dim + predicted, 1 + 2 * dim + np.flatnonzero(pairs)])
    law = dataclasses.replace(law, active=tuple(int(place) for place in active))
    net = _initialize(key, surrogate, law, rows.take(jnp.arange(1)))
    return {**params, "law": dataclasses.replace(law, net=net)}


@jit
def _initialize(key: Array, surrogate: Surrogate, law: Law, rows: Rows) -> Any:
    return law.module(surrogate.networks.config).init(key, rows.features)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Law:
    """Maximum likelihood of location, scale and law together."""

    batch_size: int

    def loss(self, params: Any, key: Array, data: Any) -> Array:
        batch = draw_rows(key, data, self.batch_size)
        return average(_losses(data, params, batch), batch.weights)

    def validate(self, params: Any, data: Any) -> Array:
        return average(self.per_row(params, data), data["held_out"].weights)

    def per_row(self, params: Any, data: Any) -> Array:
        return in_parts(lambda rows, _: _losses(data, params, rows), data["held_out"], data["key"])


def _losses(data: Any, params: Any, rows: Rows) -> Array:
    return -_with(data["surrogate"], params, data["units"]).log_prob(rows.features, rows.values)
