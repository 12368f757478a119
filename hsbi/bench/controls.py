"""Verdicts on posteriors and surrogates that are wrong in known ways, on Gaussian Linear with 10 sites.

Draws are those of the exact posterior, changed at one level or at both. Every control must be called wrong or doubtful
at its own level, and the exact posterior trusted, in at least 19 of 20 repeats. No network is involved.
"""

import argparse
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from hsbi.bench.tasks import gaussian_linear
from hsbi.diagnostics.levels import check_globals, check_joint, check_locals
from hsbi.diagnostics.surrogate_check import check_surrogate
from hsbi.diagnostics.verdict import Verdict, judge

NUM_SITES, NUM_DATA_SETS, NUM_DRAWS, NUM_ROWS = 10, 200, 100, 500
NUM_LINES = 4
LINES = ("globals", "locals", "joint", "surrogate")
_DIM = 5


class Sets(NamedTuple):
    """Simulated data sets with exact posterior draws.

    Attributes:
        sigma: True globals, `[datasets]`.
        mu: True locals, `[datasets, sites, 5]`.
        y: Data, likewise.
        sigma_draws: `[datasets, draws]`.
        mu_draws: `[datasets, draws, sites, 5]`.
        noise_factor: What the surrogate's noise is multiplied by.
    """

    sigma: np.ndarray
    mu: np.ndarray
    y: np.ndarray
    sigma_draws: np.ndarray
    mu_draws: np.ndarray
    noise_factor: float = 1.0


Control = Callable[[np.random.Generator, Sets], Sets]


def _rescale(draws: np.ndarray, factor: float) -> np.ndarray:
    center = draws.mean(1, keepdims=True)
    return center + factor * (draws - center)


def _prior_globals(rng: np.random.Generator, sets: Sets) -> Sets:
    return sets._replace(sigma_draws=np.abs(rng.normal(size=sets.sigma_draws.shape)))


def _prior_locals(rng: np.random.Generator, sets: Sets) -> Sets:
    return sets._replace(mu_draws=rng.normal(size=sets.mu_draws.shape))


def _shift_globals(rng: np.random.Generator, sets: Sets) -> Sets:
    return sets._replace(sigma_draws=sets.sigma_draws + 0.5 * sets.sigma_draws.std(1, keepdims=True))


def _shift_locals(rng: np.random.Generator, sets: Sets) -> Sets:
    return sets._replace(mu_draws=sets.mu_draws + 0.5 * sets.mu_draws.std(1, keepdims=True))


def _scale_globals(factor: float) -> Control:
    # On the log scale, where a wider posterior of a standard deviation stays positive.
    return lambda rng, sets: sets._replace(sigma_draws=np.exp(_rescale(np.log(sets.sigma_draws), factor)))


def _scale_locals(factor: float) -> Control:
    return lambda rng, sets: sets._replace(mu_draws=_rescale(sets.mu_draws, factor))


# Each control with the lines of the report that must not trust it.
CONTROLS: dict[str, tuple[Control, tuple[str, ...]]] = {
    "exact": (lambda rng, sets: sets, ()),
    "prior": (lambda rng, sets: _prior_locals(rng, _prior_globals(rng, sets)), ("globals", "locals")),
    "prior of globals": (_prior_globals, ("globals",)),
    "prior of locals": (_prior_locals, ("locals",)),
    "mean of globals + 0.5 sd": (_shift_globals, ("globals",)),
    "mean of locals + 0.5 sd": (_shift_locals, ("locals",)),
    "sd of globals x 0.6": (_scale_globals(0.6), ("globals",)),
    "sd of locals x 0.6": (_scale_locals(0.6), ("locals",)),
    "sd of globals x 1.6": (_scale_globals(1.6), ("globals",)),
    "sd of locals x 1.6": (_scale_locals(1.6), ("locals",)),
    "locals swapped": (lambda rng, sets: sets._replace(mu_draws=np.roll(sets.mu_draws, 1, axis=2)), ("locals",)),
    "surrogate noise x 1.3": (lambda rng, sets: sets._replace(noise_factor=1.3), ("surrogate",)),
}


def draw_sets(seed: int) -> Sets:
    """Draw data sets from the prior, and from the exact posterior given each."""
    rng = np.random.default_rng(seed)
    sigma, mu = np.abs(rng.normal(size=NUM_DATA_SETS)), rng.normal(size=(NUM_DATA_SETS, NUM_SITES, _DIM))
    y = mu + sigma[:, None, None] * rng.normal(size=mu.shape)
    keys = jax.random.split(jax.random.key(seed), NUM_DATA_SETS)
    draws = [gaussian_linear.reference(key, one, NUM_DRAWS) for key, one in zip(keys, y, strict=True)]
    sigma_draws, mu_draws = (np.stack([one[name] for one in draws]) for name in ("sigma", "mu"))
    return Sets(sigma, mu, y, sigma_draws, mu_draws)


def verdicts(seed: int, sets: Sets) -> dict[str, Verdict]:
    """Judge globals, locals, both together and the surrogate."""
    keys = jax.random.split(jax.random.key(seed), 4)
    sigma, mu, y, sigma_draws, mu_draws, _ = sets
    energy = np.mean(y**2, axis=2, keepdims=True)
    summary = np.concatenate([y.mean(1), y.std(1), energy.mean(1)], axis=1)
    shared = np.broadcast_to(summary[:, None], (*y.shape[:2], summary.shape[1]))
    names = [f"mu[{column}]" for column in range(_DIM)]
    found = {
        "globals": check_globals(keys[0], sigma[:, None], sigma_draws[..., None], summary, columns=["sigma"]),
        "locals": check_locals(keys[1], mu, mu_draws, np.concatenate([y, energy, shared], axis=2), columns=names),
        "joint": check_joint(
            keys[2],
            np.concatenate([sigma[:, None], mu.mean(1)], axis=1),
            np.concatenate([sigma_draws[..., None], mu_draws.mean(2)], axis=2),
            summary,
            columns=["sigma", *names],
            log_likelihood=(_log_likelihood(y, sigma, mu), _log_likelihood(y[:, None], sigma_draws, mu_draws)),
        ),
        "surrogate": _check_noise(seed, sets.noise_factor),
    }
    return {name: judge(check.evidence, NUM_LINES)[0] for name, check in found.items()}


def _log_likelihood(y: np.ndarray, sigma: np.ndarray, mu: np.ndarray) -> np.ndarray:
    return -0.5 * np.sum((y - mu) ** 2, axis=-1) / sigma[..., None] ** 2 - _DIM * np.log(sigma[..., None])


def _check_noise(seed: int, factor: float):
    """Check a Gaussian surrogate whose noise is off by a factor on simulations of single sites."""
    rng = np.random.default_rng([seed, 1])
    sigma, mu = np.abs(rng.normal(size=(NUM_ROWS, 1))), rng.normal(size=(NUM_ROWS, _DIM))
    real = mu + sigma * rng.normal(size=mu.shape)
    draws = mu[:, None] + factor * sigma[:, None] * rng.normal(size=(NUM_ROWS, NUM_DRAWS, _DIM))
    columns = ["sigma", *(f"mu[{column}]" for column in range(_DIM))]
    parameters = np.concatenate([sigma, mu], axis=1)
    return check_surrogate(jax.random.key(seed), real, draws, parameters, name="y", columns=columns)


def run_repeat(seed: int) -> dict[str, dict[str, Verdict]]:
    """Judge the exact posterior and every control on the same data sets."""
    sets = draw_sets(seed)
    return {
        name: verdicts(seed, control(np.random.default_rng([seed, number]), sets))
        for number, (name, (control, _)) in enumerate(CONTROLS.items())
    }


def main() -> None:
    """Print how often each line was trusted, doubtful and wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    results = [run_repeat(options.seed + repeat) for repeat in range(options.repeats)]
    print(f"{options.repeats} repeats; each entry: trusted / doubtful / wrong")
    print(f"{'control':<26}" + "".join(f"{line:>14}" for line in LINES))
    for name in CONTROLS:
        counts = [[sum(one[name][line] == v for one in results) for v in _VERDICTS] for line in LINES]
        print(f"{name:<26}" + "".join(f"{' / '.join(map(str, count)):>14}" for count in counts), flush=True)


_VERDICTS: tuple[Verdict, ...] = ("trusted", "doubtful", "wrong")

if __name__ == "__main__":
    main()
