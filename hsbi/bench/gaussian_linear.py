"""Accuracy of the defaults on hierarchical Gaussian Linear, against its exact posterior.

    sigma ~ HalfNormal(1), mu_s ~ N(0, I), y_s ~ N(mu_s, sigma^2 I)

With mu integrated out, y_s ~ N(0, (1 + sigma^2) I), so the posterior of sigma is one-dimensional quadrature, and given
sigma, mu_s ~ N(y_s / (1 + sigma^2), sigma^2 / (1 + sigma^2) I).
"""

import argparse
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hsbi.bench.tasks.gaussian_linear import model

_GRID = np.linspace(-9.0, 3.0, 20_001)


class Moments(NamedTuple):
    """Means and standard deviations of the exact posterior."""

    sigma_mean: float
    sigma_sd: float
    mu_mean: np.ndarray
    mu_sd: np.ndarray


def draw(key: Array, num_sites: int, dim: int = 5) -> tuple[float, np.ndarray]:
    """Draw sigma from the prior and a data set from the model."""
    keys = jax.random.split(key, 3)
    sigma = abs(float(jax.random.normal(keys[0])))
    mu = jax.random.normal(keys[1], (num_sites, dim))
    return sigma, np.asarray(mu + sigma * jax.random.normal(keys[2], (num_sites, dim)))


def reference(y: np.ndarray) -> Moments:
    """Give the exact posterior's moments by quadrature over log sigma."""
    log_sigma = _GRID
    variance = np.exp(2 * log_sigma)
    total = 1 + variance
    y = np.asarray(y, float)
    log_density = -0.5 * np.sum(y**2) / total - 0.5 * y.size * np.log(total) - 0.5 * variance + log_sigma
    weight = np.exp(log_density - log_density.max())
    weight /= weight.sum()
    sigma = np.exp(log_sigma)
    mean = np.sum(weight * sigma)
    shrink = np.sum(weight / total)
    second = np.sum(weight / total**2)
    return Moments(
        sigma_mean=float(mean),
        sigma_sd=float(np.sqrt(np.sum(weight * sigma**2) - mean**2)),
        mu_mean=shrink * y,
        mu_sd=np.sqrt(np.sum(weight * variance / total) + y**2 * (second - shrink**2)),
    )


class Errors(NamedTuple):
    """|mean error| / sd and |log sd ratio| of the global, and their averages over locals."""

    global_mean: float
    global_sd: float
    local_mean: float
    local_sd: float


def compare(samples: dict[str, Array], y: np.ndarray) -> Errors:
    """Measure draws against the exact posterior."""
    exact = reference(y)
    sigma, mu = np.asarray(samples["sigma"], float), np.asarray(samples["mu"], float)
    return Errors(
        abs(sigma.mean() - exact.sigma_mean) / exact.sigma_sd,
        abs(np.log(sigma.std() / exact.sigma_sd)),
        float(np.mean(np.abs(mu.mean(0) - exact.mu_mean) / exact.mu_sd)),
        float(np.mean(np.abs(np.log(mu.std(0) / exact.mu_sd)))),
    )


def main() -> None:
    """Train once and print the errors on several data sets drawn from the prior."""
    from hsbi import LF

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=50)
    parser.add_argument("--budget", type=int, default=5000)
    parser.add_argument("--observations", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    key = jax.random.key(options.seed)
    lf = LF(model, num_simulations=options.budget, observed=("y",))
    lf.simulate(jax.random.fold_in(key, 0), options.sites)
    lf.fit(jax.random.fold_in(key, 1))
    print(lf.ledger)
    print("sigma   exact posterior   global: mean  log sd   locals: mean  log sd")
    errors = []
    for number in range(options.observations):
        sigma, y = draw(jax.random.fold_in(jax.random.key(2026), number), options.sites)
        samples = lf.sample(jax.random.fold_in(key, 2 + number), options.sites, y=jnp.asarray(y))
        errors.append(compare(samples, y))
        exact, row = reference(y), errors[-1]
        print(
            f"{sigma:5.3f}   {exact.sigma_mean:.3f} +- {exact.sigma_sd:.3f}   {row.global_mean:12.3f}"
            f"{row.global_sd:8.3f}{row.local_mean:16.3f}{row.local_sd:8.3f}",
            flush=True,
        )
    mean = Errors(*np.mean(errors, axis=0))
    print(
        f"mean                      {mean.global_mean:12.3f}{mean.global_sd:8.3f}"
        f"{mean.local_mean:16.3f}{mean.local_sd:8.3f}"
    )
    print("seconds:", ", ".join(f"{name} {value:.1f}" for name, value in lf.timings.items()))


if __name__ == "__main__":
    main()
