"""A conjugate Gaussian with its exact posterior, and estimators that are wrong in known ways."""

import numpy as np

NOISE = 0.5
SHRINK = 1 / (1 + NOISE**2)
SD = np.sqrt(NOISE**2 * SHRINK)
CONTROLS = ("prior", "shifted", "narrow", "wide")


def posterior(rng, kind, y, num_draws):
    """Draw `[len(y), num_draws]` values for theta ~ N(0, 1), y ~ N(theta, NOISE^2)."""
    z = rng.normal(size=(len(y), num_draws))
    mean = SHRINK * y[:, None]
    return {
        "exact": mean + SD * z,
        "prior": z,
        "shifted": mean + 0.5 * SD + SD * z,
        "narrow": mean + 0.6 * SD * z,
        "wide": mean + 1.6 * SD * z,
    }[kind]


def simulate(rng, kind, num_datasets, num_draws):
    """Give true values, draws and data."""
    theta = rng.normal(size=num_datasets)
    y = theta + NOISE * rng.normal(size=num_datasets)
    return theta, posterior(rng, kind, y, num_draws), y
