"""The surrogate of one observation: what a site's simulator would give, learned from single-site simulations.

Location and scale come first, by linear regression that is solved exactly and by a network that may correct it; for
counts they are the link of the mean and the log dispersion of a negative binomial or binomial distribution. What the
residual has beyond the normal is learned by a mixture of Gaussians, whose density is closed, or else by a flow, as is
what a count's score has beyond its distribution. Network, mixture and flow are kept only where simulations held out say
that they help: every parameter that is fitted for nothing costs accuracy in the posterior of the globals.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from hsbi.flow import gaussian_velocity, integrate, log_prob
from hsbi.inference.arrays import ObservationShape
from hsbi.inference.cells import log_mass, truncated_normal
from hsbi.inference.features import ParameterFeatures
from hsbi.inference.law import Law, Mixture
from hsbi.inference.linear import Linear
from hsbi.inference.scores import CountNoise
from hsbi.model.transforms import ObservationTransform
from hsbi.networks.fields import MLPField, PointField
from hsbi.networks.mlp import ResidualMLP, apply, compress
from hsbi.training import FitConfig

# Log scales beyond these bounds, in units of standardized observations, are not believed.
MIN_LOG_SCALE, MAX_LOG_SCALE = -9.0, 9.0
_CORRECTION = FitConfig(num_steps=8000, epoch_steps=200, learning_rate=3e-3, patience=10, weight_decay=1e-2)
_FLOW = FitConfig(num_steps=6000, epoch_steps=200, patience=8)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SurrogateConfig:
    """Hyperparameters of a surrogate.

    Attributes:
        width: Units of hidden layers of the correction.
        depth: Its hidden layers.
        flow_width: Units of hidden layers of the flow.
        flow_depth: Its hidden layers.
        batch_size: Rows in a training batch.
        held_out: Fraction of the simulations held out.
        num_ode_steps: Midpoint steps of a draw.
        correction: Training of the correction, and of the mixture with it.
        flow: Training of the flow.
        dtype: Type of the networks' computation; `bfloat16` suits GPUs.
    """

    width: int = 96
    depth: int = 3
    flow_width: int = 64
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
            return PointField(self.width, config.flow_width, dtype=config.dtype)
        return MLPField(self.width, config.flow_width, config.flow_depth, config.dtype)

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
        linear: Linear location and log scale, or for counts the link of the mean and the log dispersion.
        correction: Weights of the correction, or None.
        law: The mixture of Gaussians that the residual follows, or None.
        flow: Weights of the flow, or None.
        noise: The distribution of counts, or None for other observations.
        bound: Where a site's own bound of counts stands among flattened parameters and covariates, or None. It is then
            the last column of prepared features, which no network sees.
    """

    shape: ObservationShape = dataclasses.field(metadata={"static": True})
    networks: _Networks = dataclasses.field(metadata={"static": True})
    bound: int | None = dataclasses.field(default=None, metadata={"static": True})
    features: ParameterFeatures
    transform: ObservationTransform
    linear: Linear
    correction: Any = None
    law: Law | None = None
    flow: Any = None
    noise: CountNoise | None = None

    @classmethod
    def unfitted(
        cls,
        shape: ObservationShape,
        config: SurrogateConfig,
        features: ParameterFeatures,
        transform: ObservationTransform,
        bound: int | None = None,
    ) -> "Surrogate":
        """Make a surrogate that predicts nothing yet."""
        networks = _Networks(config=config, width=shape.width)
        empty = Linear(jnp.zeros((0, shape.width)), jnp.zeros((0, shape.width)))
        noise = None
        if transform.kind == "count":
            bounded = transform.bounded or bound is not None
            noise = CountNoise(bounded=bounded, upper=transform.upper - transform.lower)
        return cls(
            shape=shape,
            networks=networks,
            features=features,
            transform=transform,
            linear=empty,
            noise=noise,
            bound=bound,
        )

    def prepare(self, parameters: Array, inputs: Array | None, size: tuple[int, int] | None = None) -> Array:
        """Give features `[rows, replicates, points, F]` from flattened parameters and functional inputs.

        Args:
            parameters: `[rows, k]`.
            inputs: `[rows, replicates, points, d]`, or None.
            size: The numbers of replicates and points; those of training by default.
        """
        lead = (parameters.shape[0], *(size or (self.shape.replicates, self.shape.points)))

        def repeat(rows: Array) -> Array:
            return jnp.broadcast_to(rows[:, None, None, :], (*lead, rows.shape[-1]))

        parts = [repeat(self.features(parameters))]
        if inputs is not None:
            parts.append(self.features.of_inputs(inputs))
        if inputs is not None and self.shape.points == 1:
            # Inputs of replicates are covariates, and coefficients of them act by products.
            unit = 2 * self.features.scale_inputs(inputs) - 1
            products = parts[0][..., :, None] * unit[..., None, :]
            parts.append(products.reshape(*lead, products.shape[-2] * products.shape[-1]))
        if self.bound is not None:
            parts.append(repeat(parameters[:, self.bound : self.bound + 1] - self.transform.lower))
        return jnp.concatenate(parts, axis=-1)

    def split(self, features: Array) -> tuple[Array, CountNoise | None]:
        """Give the features that networks see, and the distribution of counts with the sites' own bounds."""
        if self.bound is None or self.noise is None:
            return features, self.noise
        return features[..., :-1], dataclasses.replace(self.noise, upper=features[..., -1:])

    def predict(self, features: Array) -> tuple[Array, Array]:
        """Give location and log scale of the standardized observation, `[..., width]` each; approximate for counts."""
        first, second = self.parameters(features)
        _, noise = self.split(features)
        if self.law is not None:
            mean, sd = self.mixture(features).moments()
            return mean, jnp.log(sd)
        if noise is None:
            return first, second
        sd = jnp.sqrt(noise.variance(first, second))
        return self.transform.center_of(noise.mean(first), sd)

    def parameters(self, features: Array) -> tuple[Array, Array]:
        """Give location and log scale, or for counts the link of the mean and the log dispersion."""
        features, noise = self.split(features)
        location, log_scale = self.linear.predict(features)
        log_scale = jnp.clip(log_scale, MIN_LOG_SCALE, MAX_LOG_SCALE)
        if self.correction is None:
            return location, log_scale
        shift, log_factor = self.networks.correct(self.correction, features)
        unit = jnp.exp(log_scale) if noise is None else 1.0
        return (
            location + shift * unit,
            jnp.clip(log_scale + log_factor, MIN_LOG_SCALE, MAX_LOG_SCALE),
        )

    def mixture(self, features: Array) -> Mixture:
        """Give the mixture of Gaussians that the standardized observation follows."""
        assert self.law is not None
        return self.law.given(features, self.networks.config).move(*self.parameters(features))

    def velocity(self, weights: Any, features: Array):
        """Give the velocity of a flow with such weights."""
        return self.networks.velocity(weights, self.split(features)[0])

    def sample(self, key: Array, features: Array) -> Array:
        """Draw standardized observations, one per row of features `[..., points, F]`."""
        if self.law is not None:
            return self.mixture(features).sample(key, features.shape[:-1])
        first, second = self.parameters(features)
        residual = jax.random.normal(key, first.shape)
        if self.flow is not None:
            steps = self.networks.config.num_ode_steps
            residual = integrate(self.velocity(self.flow, features), residual, num_steps=steps)
        _, noise = self.split(features)
        if noise is None:
            return first + jnp.exp(second) * residual
        return self.transform.center(noise.counts(residual, first, second) + self.transform.lower)

    def ends(self, features: Array, counts: Array) -> tuple[Array, Array]:
        """Give the scores between which counts above the lower bound lie."""
        _, noise = self.split(features)
        assert noise is not None
        return noise.scores(counts, *self.parameters(features))

    def log_density(self, features: Array, values: Array, known: Array | None = None) -> Array:
        """Evaluate the log density of standardized observations `[..., points, width]` point by point, without a flow.

        For integers it is the log probability of those that the numbers stand for.

        Args:
            features: `[..., points, F]`.
            values: The observations.
            known: Which of their entries are known; the others are integrated out. All by default.
        """
        if self.law is not None:
            return self.mixture(features).log_prob(values, known)
        terms = self._log_terms(features, values)
        return jnp.sum(terms if known is None else jnp.where(known, terms, 0.0), axis=-1)

    def _log_terms(self, features: Array, values: Array) -> Array:
        """Evaluate the log density entry by entry, where entries are independent."""
        if self.noise is not None:
            return log_mass(*self.ends(features, self._counts(values)))
        first, second = self.parameters(features)
        if self.transform.is_discrete:
            ends = self.transform.cell(self.transform.decode(values))
            low, high = ((end - first) * jnp.exp(-second) for end in ends)
            return log_mass(low, high)
        return -0.5 * ((values - first) * jnp.exp(-second)) ** 2 - second - 0.5 * jnp.log(2 * jnp.pi)

    def log_prob(self, features: Array, values: Array, *, num_steps: int = 32, key: Array | None = None) -> Array:
        """Evaluate the log density of standardized observations `[rows, points, width]`, one number per row.

        For counts it is the log probability of the integers that the numbers stand for. With a flow the ratio of
        densities is then taken at the middle of a cell.
        """
        if self.law is not None:
            return jnp.sum(self.log_density(features, values), axis=-1)
        if self.noise is None:
            first, second = self.parameters(features)
            residual = (values - first) * jnp.exp(-second)
            extra = -jnp.sum(second, axis=(-2, -1))
        else:
            ends = self.ends(features, self._counts(values))
            residual = truncated_normal(jnp.full(values.shape, 0.5), *ends)
            normal = -0.5 * (residual**2 + jnp.log(2 * jnp.pi))
            extra = jnp.sum(log_mass(*ends) - normal, axis=(-2, -1))
        if self.flow is None:
            density = -0.5 * jnp.sum(residual**2 + jnp.log(2 * jnp.pi), axis=(-2, -1))
            return density + extra
        velocity = self.velocity(self.flow, features)
        if self.networks.coupled:
            return log_prob(velocity, residual, num_steps=num_steps, key=key, event_ndim=2) + extra
        return jnp.sum(log_prob(velocity, residual, num_steps=num_steps, key=key), axis=-1) + extra

    def _counts(self, values: Array) -> Array:
        return self.transform.decode(values).astype(jnp.float32) - self.transform.lower
