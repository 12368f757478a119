"""The surrogate of one observation: what a site's simulator would give, learned from single-site simulations.

Location and scale come first, by linear regression that is solved exactly and by a network that may correct it; a flow
then learns what is not Gaussian about the residual. Network and flow are kept only where simulations held out say that
they help: every parameter that is fitted for nothing costs accuracy in the posterior of the globals.
"""

import dataclasses
import functools
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from hsbi.flow import flow_matching_loss, gaussian_velocity, integrate, log_prob
from hsbi.inference.arrays import ObservationShape
from hsbi.inference.features import ParameterFeatures
from hsbi.inference.linear import Linear, fit_linear
from hsbi.model.transforms import ObservationTransform
from hsbi.networks.fields import MLPField, PointField
from hsbi.networks.mlp import ResidualMLP, apply, compress
from hsbi.training import Checkpoint, FitConfig, Progress, fit, jit, no_progress

# Log scales beyond these bounds, in units of standardized observations, are not believed.
_MIN_LOG_SCALE, _MAX_LOG_SCALE = -9.0, 9.0
_CORRECTION = FitConfig(num_steps=4000, epoch_steps=100, patience=8, weight_decay=1e-2)
_FLOW = FitConfig(num_steps=6000, epoch_steps=200, patience=8)
# A network is kept if it improves the held-out loss by more than this many standard errors of the improvement.
_MIN_GAIN = 1.5
# With fewer rows held out that standard error means nothing.
_MIN_HELD_OUT = 8
# Validation of a flow repeats each held-out row with this many fixed times and noises.
_VALIDATION_REPEATS = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class SurrogateConfig:
    """Hyperparameters of a surrogate.

    Attributes:
        width: Units of hidden layers.
        depth: Hidden layers of the correction.
        flow_depth: Hidden layers of the flow.
        batch_size: Rows in a training batch.
        held_out: Fraction of the simulations held out.
        num_ode_steps: Midpoint steps of a draw.
        correction: Training of the correction.
        flow: Training of the flow.
        dtype: Type of the networks' computation; `bfloat16` suits GPUs.
    """

    width: int = 64
    depth: int = 2
    flow_depth: int = 3
    batch_size: int = 256
    held_out: float = 0.1
    num_ode_steps: int = 8
    correction: FitConfig = _CORRECTION
    flow: FitConfig = _FLOW
    dtype: str = "float32"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Networks:
    """The modules of a surrogate, hashable and without weights."""

    config: SurrogateConfig
    points: int
    width: int

    def correct(self, weights: Any, features: Array) -> tuple[Array, Array]:
        module = ResidualMLP(self.config.width, self.config.depth, 2 * self.width, zero=True, dtype=self.config.dtype)
        out = apply(module, weights, compress(features))
        return out[..., : self.width], out[..., self.width :]

    def initial_correction(self, key: Array, features: Array) -> Any:
        module = ResidualMLP(self.config.width, self.config.depth, 2 * self.width, zero=True, dtype=self.config.dtype)
        return module.init(key, features)

    @property
    def field(self) -> MLPField | PointField:
        config = self.config
        if self.points > 1:
            return PointField(self.width, config.width, dtype=config.dtype)
        return MLPField(self.width, config.width, config.flow_depth, config.dtype)

    def velocity(self, weights: Any, features: Array):
        def velocity(x: Array, t: Array) -> Array:
            return gaussian_velocity(x, t) + apply(self.field, weights, x, t, compress(features))

        return velocity


class Rows(NamedTuple):
    """Single-site simulations as a surrogate sees them.

    Attributes:
        features: `[rows, points, F]`.
        values: Standardized observations, `[rows, points, width]`.
        weights: `[rows]`.
        simulation: The simulation that each row is a replicate of, `[rows]`.
    """

    features: Array
    values: Array
    weights: Array
    simulation: Array

    def take(self, index: ArrayLike) -> "Rows":
        """Select rows."""
        return jax.tree.map(lambda array: array[index], self)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Surrogate:
    """A sampler of one site's observation given its parameters and covariates.

    Attributes:
        shape: The layout of the observation.
        networks: The modules.
        features: Features of parameters and covariates.
        transform: The observation's transform.
        linear: Linear location and log scale.
        correction: Weights of the correction, or None.
        flow: Weights of the flow, or None.
    """

    shape: ObservationShape = dataclasses.field(metadata={"static": True})
    networks: _Networks = dataclasses.field(metadata={"static": True})
    features: ParameterFeatures
    transform: ObservationTransform
    linear: Linear
    correction: Any = None
    flow: Any = None

    @classmethod
    def unfitted(
        cls,
        shape: ObservationShape,
        config: SurrogateConfig,
        features: ParameterFeatures,
        transform: ObservationTransform,
    ) -> "Surrogate":
        """Make a surrogate that predicts nothing yet."""
        networks = _Networks(config=config, points=shape.points, width=shape.width)
        empty = Linear(jnp.zeros((0, shape.width)), jnp.zeros((0, shape.width)))
        return cls(shape=shape, networks=networks, features=features, transform=transform, linear=empty)

    def prepare(self, parameters: Array, inputs: Array | None) -> Array:
        """Give features `[rows, replicates, points, F]` from flattened parameters and functional inputs."""
        features = self.features(parameters)
        lead = (features.shape[0], self.shape.replicates, self.shape.points)
        features = jnp.broadcast_to(features[:, None, None, :], (*lead, features.shape[-1]))
        if inputs is None:
            return features
        return jnp.concatenate([features, self.features.of_inputs(inputs)], axis=-1)

    def predict(self, features: Array) -> tuple[Array, Array]:
        """Give location and log scale of the standardized observation, `[..., width]` each."""
        location, log_scale = self.linear.predict(features)
        log_scale = jnp.clip(log_scale, _MIN_LOG_SCALE, _MAX_LOG_SCALE)
        if self.correction is None:
            return location, log_scale
        shift, log_factor = self.networks.correct(self.correction, features)
        return (
            location + shift * jnp.exp(log_scale),
            jnp.clip(log_scale + log_factor, _MIN_LOG_SCALE, _MAX_LOG_SCALE),
        )

    def sample(self, key: Array, features: Array) -> Array:
        """Draw standardized observations, one per row of features `[..., points, F]`."""
        location, log_scale = self.predict(features)
        residual = jax.random.normal(key, location.shape)
        if self.flow is not None:
            velocity = self.networks.velocity(self.flow, self._flow_features(features))
            residual = integrate(
                velocity, self._flow_points(residual), num_steps=self.networks.config.num_ode_steps
            ).reshape(location.shape)
        return location + jnp.exp(log_scale) * residual

    def log_prob(self, features: Array, values: Array, *, num_steps: int = 32, key: Array | None = None) -> Array:
        """Evaluate the log density of standardized observations `[rows, points, width]`, one number per row."""
        location, log_scale = self.predict(features)
        residual = (values - location) * jnp.exp(-log_scale)
        jacobian = -jnp.sum(log_scale, axis=(-2, -1))
        if self.flow is None:
            density = -0.5 * jnp.sum(residual**2 + jnp.log(2 * jnp.pi), axis=(-2, -1))
            return density + jacobian
        velocity = self.networks.velocity(self.flow, self._flow_features(features))
        points = self._flow_points(residual)
        event_ndim = 1 if self.shape.points == 1 else 2
        return log_prob(velocity, points, num_steps=num_steps, key=key, event_ndim=event_ndim) + jacobian

    def _flow_features(self, features: Array) -> Array:
        return features if self.shape.points > 1 else features[..., 0, :]

    def _flow_points(self, residual: Array) -> Array:
        return residual if self.shape.points > 1 else residual[..., 0, :]


def fit_surrogate(
    key: Array,
    surrogate: Surrogate,
    rows: Rows,
    *,
    progress: Progress = no_progress,
    checkpoint: Checkpoint | None = None,
) -> tuple[Surrogate, dict[str, np.ndarray]]:
    """Fit a surrogate to single-site simulations.

    Args:
        key: A random key.
        surrogate: The surrogate to fit.
        rows: The simulations.
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
    rows = _drop_failed(rows, shape.name)
    held_out, kept = _hold_out(order_key, rows, config.held_out)
    surrogate = dataclasses.replace(surrogate, linear=_solve(kept))
    losses: dict[str, np.ndarray] = {}
    data = {"train": kept, "held_out": held_out, "surrogate": surrogate, "key": noise_key}

    start, start_flow = _initialize(networks, init_key, rows.take(jnp.arange(1)))
    stage = _Correction(batch_size=config.batch_size)
    name = f"surrogate of {shape.name}"
    watch = {"progress": progress, "checkpoint": checkpoint}
    result = fit(correct_key, start, stage, data, config.correction, name=f"{name}: location, scale", **watch)
    losses["location, scale"] = result.losses
    if _helps(stage, start, result.params, data):
        surrogate = dataclasses.replace(surrogate, correction=result.params)
        data["surrogate"] = surrogate

    stage = _Flow(batch_size=config.batch_size)
    result = fit(flow_key, start_flow, stage, data, config.flow, name=f"{name}: flow", **watch)
    losses["flow"] = result.losses
    if _helps(stage, start_flow, result.params, data):
        surrogate = dataclasses.replace(surrogate, flow=result.params)
    return surrogate, losses


def _hold_out(key: Array, rows: Rows, fraction: float) -> tuple[Rows, Rows]:
    """Hold out whole simulations: replicates of one share its parameters, and must not be on both sides."""
    is_held_out = np.isin(np.asarray(rows.simulation), _choose_held_out(key, rows, fraction))
    return rows.take(np.flatnonzero(is_held_out)), rows.take(np.flatnonzero(~is_held_out))


def _choose_held_out(key: Array, rows: Rows, fraction: float) -> np.ndarray:
    simulations = np.unique(np.asarray(rows.simulation))
    order = np.asarray(jax.random.permutation(key, simulations.size))
    return simulations[order[: max(1, int(fraction * simulations.size))]]


def held_out_simulations(key: Array, rows: Rows, fraction: float) -> np.ndarray:
    """List the simulations that `fit_surrogate` holds out with the same key and rows."""
    usable = np.flatnonzero(_usable(rows))
    return np.sort(_choose_held_out(jax.random.split(key, 5)[0], rows.take(usable), fraction))


def _usable(rows: Rows) -> np.ndarray:
    return np.all(np.isfinite(rows.values), axis=(1, 2)) & np.all(np.isfinite(rows.features), axis=(1, 2))


def _drop_failed(rows: Rows, name: str) -> Rows:
    """Leave out simulations that are not finite, or lie outside the observation's support."""
    usable = _usable(rows)
    failed = usable.size - np.count_nonzero(usable)
    if failed == 0:
        return rows
    if failed == usable.size:
        raise ValueError(f"No simulation of {name!r} is finite and within its support. Check the simulator.")
    warnings.warn(
        f"{failed} of {usable.size} simulations of {name!r} are not finite or lie outside its support and are left "
        "out. The posterior is then that of a simulator that does not fail.",
        stacklevel=3,
    )
    return rows.take(jnp.asarray(np.flatnonzero(usable)))


@jit
def _solve(rows: Rows) -> Linear:
    num_points = rows.values.shape[1]
    weights = jnp.repeat(rows.weights, num_points)
    return fit_linear(_merge(rows.features), _merge(rows.values), weights)


@functools.partial(jit, static_argnames="networks")
def _initialize(networks: _Networks, key: Array, rows: Rows) -> tuple[Any, Any]:
    correction_key, field_key = jax.random.split(key)
    values, features = (rows.values, rows.features) if networks.points > 1 else (rows.values[:, 0], rows.features[:, 0])
    field = networks.field.init(field_key, values, jnp.zeros(1), features)
    return networks.initial_correction(correction_key, rows.features), field


def _merge(array: Array) -> Array:
    return array.reshape(-1, array.shape[-1])


def _helps(stage: "_Correction | _Flow", before: Any, after: Any, data: Any) -> bool:
    """Say whether trained weights beat the weights they started from on simulations held out."""
    gain, weights = np.asarray(_gains(stage, before, after, data)), np.asarray(data["held_out"].weights)
    if gain.size < _MIN_HELD_OUT:
        return False
    mean = np.sum(weights * gain) / np.sum(weights)
    error = np.sqrt(np.sum((weights * (gain - mean)) ** 2)) / np.sum(weights)
    return bool(mean > _MIN_GAIN * error)


@functools.partial(jit, static_argnames="stage")
def _gains(stage: "_Correction | _Flow", before: Any, after: Any, data: Any) -> Array:
    return stage.per_row(before, data) - stage.per_row(after, data)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Correction:
    """Maximum likelihood of location and scale."""

    batch_size: int

    def loss(self, params: Any, key: Array, data: Any) -> Array:
        rows = data["train"]
        batch = rows.take(jax.random.randint(key, (self.batch_size,), 0, rows.weights.shape[0]))
        return _average(_gaussian_loss(data["surrogate"], params, batch), batch.weights)

    def validate(self, params: Any, data: Any) -> Array:
        return _average(self.per_row(params, data), data["held_out"].weights)

    def per_row(self, params: Any, data: Any) -> Array:
        return _gaussian_loss(data["surrogate"], params, data["held_out"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Flow:
    """Flow matching on the residual of location and scale."""

    batch_size: int

    def loss(self, params: Any, key: Array, data: Any) -> Array:
        rows = data["train"]
        row_key, noise_key = jax.random.split(key)
        batch = rows.take(jax.random.randint(row_key, (self.batch_size,), 0, rows.weights.shape[0]))
        return _average(_flow_loss(data["surrogate"], params, noise_key, batch), batch.weights)

    def validate(self, params: Any, data: Any) -> Array:
        return _average(self.per_row(params, data), data["held_out"].weights)

    def per_row(self, params: Any, data: Any) -> Array:
        keys = jax.random.split(data["key"], _VALIDATION_REPEATS)
        losses = jax.vmap(lambda key: _flow_loss(data["surrogate"], params, key, data["held_out"]))(keys)
        return jnp.mean(losses, axis=0)


def _average(losses: Array, weights: Array) -> Array:
    return jnp.sum(losses * weights) / jnp.sum(weights)


def _gaussian_loss(surrogate: Surrogate, params: Any, rows: Rows) -> Array:
    location, log_scale = dataclasses.replace(surrogate, correction=params).predict(rows.features)
    residual = (rows.values - location) * jnp.exp(-log_scale)
    return jnp.sum(0.5 * residual**2 + log_scale, axis=(-2, -1))


def _flow_loss(surrogate: Surrogate, params: Any, key: Array, rows: Rows) -> Array:
    location, log_scale = surrogate.predict(rows.features)
    residual = surrogate._flow_points((rows.values - location) * jnp.exp(-log_scale))
    velocity = surrogate.networks.velocity(params, surrogate._flow_features(rows.features))
    return flow_matching_loss(key, velocity, residual, event_ndim=residual.ndim - 1).per_sample
