"""Level and power of the diagnostics on a conjugate Gaussian, with estimators that are wrong in known ways.

    theta ~ N(0, 1), y ~ N(theta, 0.5^2), so theta | y ~ N(0.8 y, 0.2)

Each figure is the share of repeats in which a test rejects at 0.05. The first estimator is the exact posterior, so its
row is the level; the others are controls that a good test rejects.
"""

import argparse
from collections.abc import Callable

import jax
import numpy as np

from hsbi.diagnostics import c2st_test, lc2st, mmd_test, sbc_ranks, tarp, uniformity

_NOISE = 0.5
_SHRINK = 1 / (1 + _NOISE**2)
_SD = np.sqrt(_NOISE**2 * _SHRINK)
_LEVEL = 0.05

Estimator = Callable[[np.random.Generator, np.ndarray, int], np.ndarray]


def gaussian(shift: float = 0.0, scale: float = 1.0) -> Estimator:
    """Make an estimator whose mean is off by `shift` posterior sds and whose sd is off by a factor."""

    def draw(rng: np.random.Generator, y: np.ndarray, num_draws: int) -> np.ndarray:
        noise = rng.normal(size=(len(y), num_draws))
        return _SHRINK * y[:, None] + _SD * (shift + scale * noise)

    return draw


def prior(rng: np.random.Generator, y: np.ndarray, num_draws: int) -> np.ndarray:
    """Draw from the prior, whatever the data."""
    return rng.normal(size=(len(y), num_draws))


ESTIMATORS: dict[str, Estimator] = {
    "exact": gaussian(),
    "prior": prior,
    "mean + 0.5 sd": gaussian(shift=0.5),
    "sd x 0.6": gaussian(scale=0.6),
    "sd x 1.6": gaussian(scale=1.6),
}


def calibration_p_values(seed: int, estimator: Estimator, num_datasets: int, num_draws: int) -> dict[str, float]:
    """Run the tests that need draws for many data sets, once."""
    rng, key = np.random.default_rng(seed), jax.random.key(seed)
    theta = rng.normal(size=num_datasets)
    y = theta + _NOISE * rng.normal(size=num_datasets)
    draws = estimator(rng, y, num_draws)
    likelihood = sbc_ranks(key, -((y - theta) ** 2), -((y[:, None] - draws) ** 2))
    return {
        "ranks": float(uniformity(sbc_ranks(key, theta, draws)).p_value),
        "ranks of log p(y|theta)": float(uniformity(likelihood).p_value),
        "TARP, random": tarp(key, theta, draws).p_value,
        "TARP, from data": tarp(key, theta, draws, data=y).p_value,
    }


def sample_p_values(seed: int, estimator: Estimator, size: int) -> dict[str, float]:
    """Run the tests that need a classifier or a kernel, once, at an observation drawn from the model."""
    rng, key = np.random.default_rng(seed), jax.random.key(seed)
    theta = rng.normal(size=size)
    y = theta + _NOISE * rng.normal(size=size)
    observed = rng.normal(scale=np.sqrt(1 + _NOISE**2), size=1)
    draws, exact = estimator(rng, observed, size)[0], ESTIMATORS["exact"](rng, observed, size)[0]
    local = lc2st(key, theta, estimator(rng, y, 1)[:, 0], y, draws, observed[0], num_nulls=39)
    return {
        "l-C2ST": local.p_value,
        "C2ST": c2st_test(key, exact, draws, num_nulls=19).p_value,
        "MMD": mmd_test(key, exact, draws, num_permutations=99).p_value,
    }


def print_table(title: str, rows: dict[str, list[dict[str, float]]]) -> None:
    """Print the share of p-values at or below the level, one row per estimator."""
    names = list(next(iter(rows.values()))[0])
    print(f"\n{title}\n{'estimator':<16}" + "".join(f"{name:>25}" for name in names))
    for label, results in rows.items():
        shares = [np.mean([result[name] <= _LEVEL for result in results]) for name in names]
        print(f"{label:<16}" + "".join(f"{share:>25.3f}" for share in shares), flush=True)


def main() -> None:
    """Print one table per number of data sets, and one of the two-sample tests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", type=int, nargs="*", default=[50, 100, 200])
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=2_000)
    parser.add_argument("--size", type=int, default=500, help="draws, and data sets for l-C2ST, in two-sample tests")
    parser.add_argument("--sample-repeats", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for num_datasets in options.datasets:
        rows = {
            label: [
                calibration_p_values(options.seed + repeat, estimator, num_datasets, options.draws)
                for repeat in range(options.repeats)
            ]
            for label, estimator in ESTIMATORS.items()
        }
        print_table(f"{num_datasets} data sets, {options.draws} draws each, {options.repeats} repeats", rows)
    if options.sample_repeats:
        rows = {
            label: [sample_p_values(options.seed + n, estimator, options.size) for n in range(options.sample_repeats)]
            for label, estimator in ESTIMATORS.items()
        }
        print_table(f"two-sample tests, {options.size} draws, {options.sample_repeats} repeats", rows)


if __name__ == "__main__":
    main()
