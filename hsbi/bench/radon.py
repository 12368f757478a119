"""Accuracy on the radon survey, 919 houses in 85 ragged counties, against its exact posterior."""

import argparse
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hsbi.bench.tasks import radon


def compare(samples: Mapping[str, Array], houses: radon.Houses) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Give signed errors of means in exact standard deviations, and ratios of standard deviations, by latent."""
    found = {}
    for name, (mean, sd) in radon.moments(houses.floor, houses.uranium, houses.y).items():
        draws = np.asarray(samples[name], float).reshape(-1, *np.shape(mean))
        found[name] = ((draws.mean(0) - mean) / sd, draws.std(0, ddof=1) / sd)
    return found


def main() -> None:
    """Train with the defaults and print errors and times."""
    from hsbi import LF

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=int, default=10_000, help="simulations of a county")
    parser.add_argument("--draws", type=int, default=2_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    options = parser.parse_args()
    houses = radon.load()
    arrays = [jnp.asarray(value) for value in (houses.floor, houses.uranium, houses.y)]
    for seed in options.seeds:
        lf = LF(radon.model, num_simulations=options.budget, num_samples=options.draws)
        lf.run(jax.random.key(seed), *arrays)
        print(f"\nseed {seed}: {', '.join(f'{name} {value:.0f} s' for name, value in lf.timings.items())}")
        print(f"{'':12}{'mean':>8}{'sd':>8}")
        found = compare(lf.get_samples(), houses)
        for name in radon.GLOBALS:
            error, ratio = found[name]
            print(f"{name:12}{error:+8.3f}{ratio:8.3f}")
        errors, ratios = found["alpha"]
        print(f"{'counties':12}{np.mean(np.abs(errors)):8.3f}{np.mean(ratios):8.3f}   on average")
        print(f"{'':12}{np.max(np.abs(errors)):8.3f}{np.min(ratios):8.3f} to {np.max(ratios):.3f}, the worst")
        if lf.efficiency is not None:
            print(f"efficiency {float(lf.efficiency.globals):.2f}, {float(lf.efficiency.locals):.2f}", flush=True)


if __name__ == "__main__":
    main()
