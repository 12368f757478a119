"""A program whose surrogate is known: schools with Gaussian errors, and the exact surrogate of their effects."""

import jax.numpy as jnp
import numpy as np

from hsbi.inference.arrays import Coordinates, Design, ObservationShape
from hsbi.inference.features import ParameterFeatures
from hsbi.inference.linear import Linear
from hsbi.inference.surrogate import Surrogate, SurrogateConfig
from hsbi.model.transforms import ObservationTransform, Standardizer
from hsbi.training import FitConfig

# Observations are standardized by this centre and scale.
CENTER, SCALE = 3.0, 8.0
TINY = SurrogateConfig(
    width=8,
    flow_depth=2,
    batch_size=128,
    held_out=0.25,
    correction=FitConfig(num_steps=100, epoch_steps=50, learning_rate=5e-3, warmup_steps=10),
    flow=FitConfig(num_steps=300, epoch_steps=100, learning_rate=5e-3, warmup_steps=10),
)


def identity(dim: int) -> Standardizer:
    """Change nothing."""
    return Standardizer(jnp.zeros(dim), jnp.ones(dim))


def transform(center: float = CENTER, scale: float = SCALE, width: int = 1) -> ObservationTransform:
    """Center and scale real numbers."""
    return ObservationTransform(
        kind="real",
        loc=jnp.full(width, center),
        scale=jnp.full(width, scale),
        lower=jnp.asarray(-jnp.inf),
        upper=jnp.asarray(jnp.inf),
        floor=jnp.asarray(1e-30),
    )


def school_coordinates() -> Coordinates:
    """Give mu, log tau and (theta - mu) / tau as they are."""
    sizes = (("mu", "global", 1), ("tau", "global", 1), ("theta", "local", 1))
    return Coordinates(sizes=sizes, globals=identity(2), locals=identity(1), values=identity(2))


def school_surrogate(shift: float = 0.0, log_factor: float = 0.0) -> Surrogate:
    """Give the exact surrogate of y ~ Normal(theta, sigma); its features are theta, sigma and log sigma.

    Args:
        shift: What the location gains per unit of sigma.
        log_factor: What the log scale gains.
    """
    features = ParameterFeatures(
        names=("theta",), positive=(1,), scaling=identity(3), input_low=jnp.zeros(0), input_range=jnp.zeros(0)
    )
    shape = ObservationShape(name="y", replicates=1, points=1, width=1, parents=("theta",))
    linear = Linear(
        jnp.asarray([[1.0], [shift], [0.0], [-CENTER]]) / SCALE,
        jnp.asarray([[0.0], [0.0], [1.0], [log_factor - np.log(SCALE)]]),
    )
    empty = Surrogate.unfitted(shape, TINY, features, transform())
    return Surrogate(
        shape=empty.shape, networks=empty.networks, features=features, transform=empty.transform, linear=linear
    )


def school_design(errors: np.ndarray) -> Design:
    """Give the schools' standard errors as their covariate."""
    return Design(jnp.asarray(errors, jnp.float32)[:, None], {})
