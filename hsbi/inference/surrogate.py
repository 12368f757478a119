"""The surrogate of one observation: what a site's simulator would give, learned from single-site simulations.

Location and scale come first, by linear regression that is solved exactly and by a network that may correct it; a flow
then learns what is not Gaussian about the residual. Network and flow are kept only where simulations held out say that
they help: every parameter that is fitted for nothing costs accuracy in the posterior of the globals.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from hsbi.flow import gaussian_velocity, integrate, log_prob
from hsbi.inference.arrays import ObservationShape
from hsbi.inference.features import ParameterFeatures
from hsbi.inference.linear import Linear
from hsbi.model.transforms import ObservationTransform
from hsbi.networks.fields import MLPField, PointField
from hsbi.networks.mlp import ResidualMLP, apply, compress
from hsbi.training import FitConfig

# Log scales beyond these bounds, in units of standardized observations, are not believed.
_MIN_LOG_SCALE, _MAX_LOG_SCALE = -9.0, 9.0
_CORRECTION = FitConfig(num_steps=8000, epoch_steps=200, learning_rate=3e-3, patience=10, weight_decay=1e-2)
_FLOW = FitConfig(num_steps=6000, epoch_steps=200, patience=8)


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
    """The modules of a surrogate, hashable and without weights.

    Points of one function are independent given the parameters unless they are coupled; then they attend to each other.
    """

    config: SurrogateConfig
    width: int
    coupled: bool = False

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
        if self.coupled:
            return PointField(self.width, config.width, dtype=config.dtype)
        return MLPField(self.width, config.width, config.flow_depth, config.dtype)

    def velocity(self, weights: Any, features: Array):
        def velocity(x: Array, t: Array) -> Array:
            return gaussian_velocity(x, t) + apply(self.field, weights, x, t, compress(features))

        return velocity


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
        networks = _Networks(config=config, width=shape.width)
        empty = Linear(jnp.zeros((0, shape.width)), jnp.zeros((0, shape.width)))
        return cls(shape=shape, networks=networks, features=features, transform=transform, linear=empty)

    def prepare(self, parameters: Array, inputs: Array | None, size: tuple[int, int] | None = None) -> Array:
        """Give features `[rows, replicates, points, F]` from flattened parameters and functional inputs.

        Args:
            parameters: `[rows, k]`.
            inputs: `[rows, replicates, points, d]`, or None.
            size: The numbers of replicates and points; those of training by default.
        """
        features = self.features(parameters)
        lead = (features.shape[0], *(size or (self.shape.replicates, self.shape.points)))
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
            velocity = self.networks.velocity(self.flow, features)
            residual = integrate(velocity, residual, num_steps=self.networks.config.num_ode_steps)
        return location + jnp.exp(log_scale) * residual

    def log_prob(self, features: Array, values: Array, *, num_steps: int = 32, key: Array | None = None) -> Array:
        """Evaluate the log density of standardized observations `[rows, points, width]`, one number per row."""
        location, log_scale = self.predict(features)
        residual = (values - location) * jnp.exp(-log_scale)
        jacobian = -jnp.sum(log_scale, axis=(-2, -1))
        if self.flow is None:
            density = -0.5 * jnp.sum(residual**2 + jnp.log(2 * jnp.pi), axis=(-2, -1))
            return density + jacobian
        velocity = self.networks.velocity(self.flow, features)
        if self.networks.coupled:
            return log_prob(velocity, residual, num_steps=num_steps, key=key, event_ndim=2) + jacobian
        return jnp.sum(log_prob(velocity, residual, num_steps=num_steps, key=key), axis=-1) + jacobian
