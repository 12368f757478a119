"""Training of a surrogate on single-site simulations, and the rule by which its parts are kept."""

import dataclasses
import math
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hsbi.flow import flow_matching_loss
from hsbi.inference.cells import log_mass, truncated_normal
from hsbi.inference.count_linear import fit_count_linear
from hsbi.inference.features import add_logarithms
from hsbi.inference.gains import average, draw_rows, helps, in_parts, is_gain
from hsbi.inference.law_fit import can_have_law, fit_law
from hsbi.inference.linear import Linear, fit_linear
from hsbi.inference.rows import Raw, Rows, usable_rows
from hsbi.inference.surrogate import Surrogate
from hsbi.training import Checkpoint, Progress, fit, jit, no_progress

# Values that the linear part is solved for, at most.
_MAX_SOLVED = 2**20
# A flow has to improve the held-out loss by more standard errors than a network: without one the surrogate has a
# density that draws can be weighed by.
_MIN_FLOW_GAIN = 3.0
# Further features have to gain as much, and this much per simulation, in nats.
_LEAST_NATS = 0.05
# Points of a function are coupled if their residuals correlate by this much, and by so many standard errors.
_MIN_CORRELATION, _MIN_STRENGTH = 0.05, 4.0
_MAX_RESIDUAL = 6.0
# Validation of a flow repeats each held-out row with this many fixed times and noises.
_VALIDATION_REPEATS = 8


def fit_surrogate(
    key: Array,
    surrogate: Surrogate,
    rows: Rows | Raw,
    chosen: np.ndarray | None = None,
    *,
    progress: Progress = no_progress,
    checkpoint: Checkpoint | None = None,
) -> tuple[Surrogate, dict[str, np.ndarray]]:
    """Fit a surrogate to single-site simulations.

    Args:
        key: A random key.
        surrogate: The surrogate to fit.
        rows: The simulations.
        chosen: The rows to fit to, all of them usable; found by default.
        progress: Called to show progress.
        checkpoint: Where the states of training are kept.

    Returns:
        The surrogate, and the losses by epoch of what was trained.

    Raises:
        ValueError: If no simulation is usable.
    """
    order_key, init_key, correct_key, flow_key, noise_key = jax.random.split(key, 5)
    shape, networks = surrogate.shape, surrogate.networks
    config = networks.config
    # Rows stay where they are, as a selection of them would be a second copy; what is left out is never looked up.
    chosen = select_rows(rows, surrogate, noise_key) if chosen is None else chosen
    held_out, kept = _hold_out(order_key, rows, chosen, config.held_out)
    # Regression needs no more; all else sees every row, batch by batch.
    some = _encode(
        rows, kept[: _MAX_SOLVED // (shape.points * shape.width)], surrogate, jax.random.fold_in(noise_key, 1)
    )
    surrogate = dataclasses.replace(surrogate, linear=_solve(some, surrogate))
    if isinstance(rows, Raw) and can_have_law(surrogate):
        surrogate, rows, some = _try_logarithms(surrogate, rows, some, kept, held_out, noise_key)
    losses: dict[str, np.ndarray] = {}
    data = {
        "rows": rows,
        "train": jnp.asarray(kept),
        "held_out": _encode(rows, held_out, surrogate, noise_key),
        "surrogate": surrogate,
        "key": noise_key,
    }

    first = some.take(jnp.arange(1))
    start = _initialize_correction(surrogate, init_key, first)
    stage = _Correction(batch_size=config.batch_size)
    name = f"surrogate of {shape.name}"
    watch = {"progress": progress, "checkpoint": checkpoint}
    result = fit(correct_key, start, stage, data, config.correction, name=f"{name}: location, scale", **watch)
    losses["location, scale"] = result.losses
    if helps(stage, start, result.params, data):
        surrogate = dataclasses.replace(surrogate, correction=result.params)
    if shape.points > 1 and _depend(surrogate, some):
        surrogate = dataclasses.replace(surrogate, networks=dataclasses.replace(networks, coupled=True))
    data["surrogate"] = surrogate
    if can_have_law(surrogate):
        # The keys of the other stages are what they would be without this one.
        law_key = jax.random.fold_in(correct_key, 1)
        surrogate, found = fit_law(law_key, surrogate, data, some, name=name, **watch)
        losses |= found
        if surrogate.law is not None:
            return surrogate, losses

    start_flow = _initialize_flow(surrogate, init_key, first)
    stage = _Flow(batch_size=config.batch_size)
    result = fit(flow_key, start_flow, stage, data, config.flow, name=f"{name}: flow", **watch)
    losses["flow"] = result.losses
    if helps(stage, start_flow, result.params, data, _MIN_FLOW_GAIN):
        surrogate = dataclasses.replace(surrogate, flow=result.params)
    return surrogate, losses


def _hold_out(key: Array, rows: Rows | Raw, chosen: np.ndarray, fraction: float) -> tuple[np.ndarray, np.ndarray]:
    """Hold out whole simulations: replicates of one share its parameters, and must not be on both sides.

    Args:
        key: A random key.
        rows: The simulations.
        chosen: The rows that are used.
        fraction: The share of simulations to hold out.

    Returns:
        The rows held out and the rows kept.
    """
    simulation = np.asarray(rows.simulation)[chosen]
    is_used = np.zeros(simulation.max() + 1, bool)
    is_used[simulation] = True
    used = np.flatnonzero(is_used)
    order = np.asarray(jax.random.permutation(key, used.size))
    is_held_out = np.zeros_like(is_used)
    is_held_out[used[order[: max(1, int(fraction * used.size))]]] = True
    return chosen[is_held_out[simulation]], chosen[~is_held_out[simulation]]


def held_out_simulations(key: Array, surrogate: Surrogate, rows: Rows | Raw, chosen: np.ndarray) -> np.ndarray:
    """List the simulations that `fit_surrogate` holds out with the same key and rows."""
    order_key, *_ = jax.random.split(key, 5)
    held_out, _ = _hold_out(order_key, rows, chosen, surrogate.networks.config.held_out)
    return np.unique(np.asarray(rows.simulation)[held_out])


_find_usable = jit(usable_rows)
_encode = jit(lambda rows, index, surrogate, key: rows.encode(index, surrogate, key))


def select_rows(rows: Rows | Raw, surrogate: Surrogate, key: Array, failed: np.ndarray | None = None) -> np.ndarray:
    """List the rows that are finite and within the observation's support.

    Args:
        rows: The simulations.
        surrogate: The surrogate to fit.
        key: A random key.
        failed: Rows that are known to have failed, of which no warning is given.

    Raises:
        ValueError: If no row is.
    """
    usable, name = np.asarray(_find_usable(rows, surrogate, key)), surrogate.shape.name
    if not usable.any():
        raise ValueError(f"No simulation of {name!r} is finite and within its support. Check the simulator.")
    known = usable if failed is None else usable | failed
    number = usable.size - np.count_nonzero(known)
    if number:
        total = usable.size if failed is None else usable.size - np.count_nonzero(failed & ~usable)
        warnings.warn(
            f"{number} of {total} simulations of {name!r} are not finite or lie outside its support and are left "
            "out. The posterior is then that of a simulator that does not fail.",
            stacklevel=3,
        )
    return np.flatnonzero(usable).astype(np.int32)


@jit
def _solve(rows: Rows, surrogate: Surrogate) -> Linear:
    num_points = rows.values.shape[1]
    weights = jnp.repeat(rows.weights, num_points)
    features, noise = surrogate.split(_merge(rows.features))
    if noise is not None and rows.counts is not None:
        return fit_count_linear(features, _merge(rows.counts), weights, noise)
    return fit_linear(features, _merge(rows.values), weights)


def _try_logarithms(
    surrogate: Surrogate, rows: Raw, some: Rows, kept: np.ndarray, held_out: np.ndarray, key: Array
) -> tuple[Surrogate, Raw, Rows]:
    """Add logarithms of parameters that take both signs to the features, where held-out simulations call for it.

    A scale may follow the size of a parameter whatever its sign, which a regression on the parameter cannot see.

    Returns:
        The surrogate, all rows and the rows to start from, with features and weights that fit together.
    """
    features = add_logarithms(surrogate.features, rows.parameters)
    if features is None:
        return surrogate, rows, some
    wider = dataclasses.replace(surrogate, features=features)
    # Rows where a logarithm is far out are weighted down, as those of positive parameters are.
    weighted = rows._replace(weights=rows.weights * features.weights(features(rows.parameters)))
    encoded = _encode(weighted, kept[: some.values.shape[0]], wider, jax.random.fold_in(key, 1))
    wider = dataclasses.replace(wider, linear=_solve(encoded, wider))
    before, after = (_encode(weighted, held_out, own, key) for own in (surrogate, wider))
    gain = _linear_losses(surrogate, before) - _linear_losses(wider, after)
    if is_gain(gain, after.weights, _MIN_FLOW_GAIN, _LEAST_NATS):
        return wider, weighted, encoded
    return surrogate, rows, some


@jit
def _linear_losses(surrogate: Surrogate, rows: Rows) -> Array:
    return -surrogate.log_prob(rows.features, rows.values)


@jit
def _initialize_correction(surrogate: Surrogate, key: Array, rows: Rows) -> Any:
    features, _ = surrogate.split(rows.features)
    return surrogate.networks.initial_correction(jax.random.split(key)[0], features)


@jit
def _initialize_flow(surrogate: Surrogate, key: Array, rows: Rows) -> Any:
    features, _ = surrogate.split(rows.features)
    return surrogate.networks.field.init(jax.random.split(key)[1], rows.values, jnp.zeros(1), features)


def _depend(surrogate: Surrogate, rows: Rows) -> bool:
    """Say whether points of one simulation depend on each other given its parameters.

    Products of the residuals of two points average to zero if not: over all pairs, over neighbors, and the same of
    their squares. A location that is slightly off correlates residuals too, so small averages are passed over.
    """
    products, weights = np.asarray(_products(surrogate, rows), float), np.asarray(rows.weights, float)
    share = weights / weights.sum()
    mean = share @ products
    error = np.sqrt(share**2 @ (products - mean) ** 2)
    return bool(np.any((np.abs(mean) > _MIN_CORRELATION) & (np.abs(mean) > _MIN_STRENGTH * error)))


@jit
def _products(surrogate: Surrogate, rows: Rows) -> Array:
    """Give the mean product over pairs of points, neighbors, and pairs of centered squares, `[rows, 3]`."""
    residual = jnp.clip(_residual(surrogate, jax.random.key(0), rows), -_MAX_RESIDUAL, _MAX_RESIDUAL)
    number = residual.shape[1]

    def pairs(values: Array) -> Array:
        total = jnp.sum(values, axis=1) ** 2 - jnp.sum(values**2, axis=1)
        return jnp.mean(total, axis=-1) / (number * (number - 1))

    neighbors = jnp.mean(residual[:, 1:] * residual[:, :-1], axis=(1, 2))
    squares = (residual**2 - 1.0) / math.sqrt(2.0)
    return jnp.stack([pairs(residual), neighbors, pairs(squares)], axis=-1)


def _merge(array: Array) -> Array:
    return array.reshape(-1, array.shape[-1])


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Correction:
    """Maximum likelihood of location and scale."""

    batch_size: int

    def loss(self, params: Any, key: Array, data: Any) -> Array:
        batch = draw_rows(key, data, self.batch_size)
        return average(_location_loss(data["surrogate"], params, batch), batch.weights)

    def validate(self, params: Any, data: Any) -> Array:
        return average(self.per_row(params, data), data["held_out"].weights)

    def per_row(self, params: Any, data: Any) -> Array:
        return in_parts(lambda rows, _: _location_loss(data["surrogate"], params, rows), data["held_out"], data["key"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Flow:
    """Flow matching on the residual of location and scale."""

    batch_size: int

    def loss(self, params: Any, key: Array, data: Any) -> Array:
        row_key, noise_key = jax.random.split(key)
        batch = draw_rows(row_key, data, self.batch_size)
        return average(_flow_loss(data["surrogate"], params, noise_key, batch), batch.weights)

    def validate(self, params: Any, data: Any) -> Array:
        return average(self.per_row(params, data), data["held_out"].weights)

    def per_row(self, params: Any, data: Any) -> Array:
        def repeat(rows: Rows, key: Array) -> Array:
            keys = jax.random.split(key, _VALIDATION_REPEATS)
            losses = jax.vmap(lambda own: _flow_loss(data["surrogate"], params, own, rows))(keys)
            return jnp.mean(losses, axis=0)

        return in_parts(repeat, data["held_out"], data["key"])


def _residual(surrogate: Surrogate, key: Array, rows: Rows) -> Array:
    """Give the residuals of location and scale; those of integers are spread as a normal is within their cells.

    They are standard normal where location and scale say all, so that a flow learns nothing of the spreading.
    """
    ends = _ends(surrogate, rows)
    if ends is not None:
        return truncated_normal(jax.random.uniform(key, rows.values.shape), *ends)
    first, second = surrogate.parameters(rows.features)
    return (rows.values - first) * jnp.exp(-second)


def _ends(surrogate: Surrogate, rows: Rows) -> tuple[Array, Array] | None:
    """Give the ends of the cells of integers in units of a standard normal; None for other observations."""
    if rows.counts is not None:
        return surrogate.ends(rows.features, rows.counts)
    if rows.cells is None:
        return None
    first, second = surrogate.parameters(rows.features)
    low, high = ((end - first) * jnp.exp(-second) for end in rows.cells)
    return low, high


def _location_loss(surrogate: Surrogate, params: Any, rows: Rows) -> Array:
    """Give the negative log density of each row, for integers the negative log probability of their cells."""
    corrected = dataclasses.replace(surrogate, correction=params)
    ends = _ends(corrected, rows)
    if ends is not None:
        return -jnp.sum(log_mass(*ends), axis=(-2, -1))
    first, second = corrected.parameters(rows.features)
    residual = (rows.values - first) * jnp.exp(-second)
    return jnp.sum(0.5 * residual**2 + second, axis=(-2, -1))


def _flow_loss(surrogate: Surrogate, params: Any, key: Array, rows: Rows) -> Array:
    noise_key, match_key = jax.random.split(key)
    residual = _residual(surrogate, noise_key, rows)
    velocity = surrogate.velocity(params, rows.features)
    return flow_matching_loss(match_key, velocity, residual, event_ndim=residual.ndim - 1).per_sample
