"""Time the inspection of a model with many sites.

Run as `python -m hsbi.bench.inspection`. It prints the first inspection, which compiles, and the second.
"""

import argparse
import time

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import hsbi


def main() -> None:
    """Print the times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=1000)
    num_sites = parser.parse_args().sites
    calls = 0

    def simulate(key: jax.Array, mean: jax.Array, scale: jax.Array) -> jax.Array:
        nonlocal calls
        calls += 1
        return mean + scale * jax.random.normal(key)

    def model(scale: np.ndarray, y: np.ndarray | None = None) -> None:
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
        tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
        with numpyro.plate("site", scale.shape[0]):
            theta = numpyro.sample("theta", dist.Normal(mu, tau))
            numpyro.sample("y", hsbi.Simulator(simulate, theta, scale), obs=y)

    scale, y = np.linspace(0.5, 1.5, num_sites), np.linspace(-1.0, 1.0, num_sites)
    for name in ("first", "second"):
        calls, start = 0, time.perf_counter()
        hsbi.inspect(model, scale, y=y)
        print(
            f"{name} inspection of {num_sites} sites: {time.perf_counter() - start:.2f} s, simulator traced {calls} x"
        )


if __name__ == "__main__":
    main()
