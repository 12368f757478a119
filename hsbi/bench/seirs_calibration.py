"""Calibration on the seasonal epidemic: TARP with references that depend on the data, and uniform ranks.

Data sets are drawn from the prior; the draws are those that `lf.sample` gives for each. Draws from the prior go through
the same tests, and TARP has to reject them. `--load` takes an estimator that `python -m hsbi.bench.seirs --save` wrote.
"""

import argparse
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hsbi.bench.tasks import seirs
from hsbi.diagnostics import coverage, data_references, pooled_uniformity, sbc_ranks, tarp, uniformity
from hsbi.training import Progress, show_progress

_NUM_FOLDS = 5
_LEVELS = (0.5, 0.8, 0.9, 0.95)


def summarize(times: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Give mean, spread and annual waves of each site's log counts, `[sites, 5]`."""
    logs = np.log1p(y)
    angle = 2 * np.pi * times / seirs.WINDOW
    waves = [np.mean(logs * wave(angle), axis=-1) for wave in (np.sin, np.cos)]
    return np.stack([logs.mean(-1), logs.std(-1), np.mean(logs**2, -1), *waves], axis=-1)


def make_references(truths: np.ndarray, summaries: np.ndarray) -> np.ndarray:
    """Guess every latent from the data by regressions on other data sets, `[datasets, 1 + sites]`.

    Args:
        truths: Contact rates and amplitudes, `[datasets, 1 + sites]`.
        summaries: Of the sites' data, `[datasets, sites, features]`.
    """
    number, sites, _ = summaries.shape
    folds = np.arange(number) % _NUM_FOLDS
    of_set = np.concatenate([summaries.mean(1), summaries.std(1)], axis=-1)
    shared = np.broadcast_to(of_set[:, None], (number, sites, of_set.shape[-1]))
    own = np.concatenate([summaries, shared, summaries * of_set[:, None, :1]], axis=-1).reshape(number * sites, -1)
    rate = data_references(truths[:, :1], of_set, folds=folds)
    amplitude = data_references(truths[:, 1:].reshape(-1, 1), own, folds=np.repeat(folds, sites))
    return np.concatenate([rate, amplitude.reshape(number, sites)], axis=1)


def assess(key: Array, truths: np.ndarray, draws: np.ndarray, references: np.ndarray) -> dict[str, float]:
    """Give the p-value of each test.

    Args:
        key: A random key for ranks and nulls.
        truths: Contact rates and amplitudes, `[datasets, 1 + sites]`.
        draws: `[datasets, draws, 1 + sites]`.
        references: Of the shape of `truths`.
    """
    keys = jax.random.split(key, 4)
    ranks = sbc_ranks(keys[2], truths[:, 0], draws[..., 0])
    return {
        "TARP, all latents": tarp(keys[0], truths, draws, references=references).p_value,
        "TARP, beta0": tarp(keys[1], truths[:, :1], draws[..., :1], references=references[:, :1]).p_value,
        "ranks of beta0": float(uniformity(ranks).p_value),
        "ranks of amplitudes": float(pooled_uniformity(keys[3], truths[:, 1:], draws[..., 1:]).p_value),
    }


def collect(
    lf: Any,
    key: Array,
    number: int,
    sites: int,
    num_times: int,
    num_draws: int,
    progress: Progress = show_progress,
) -> Mapping[str, np.ndarray]:
    """Draw data sets from the prior, and their posteriors by `lf.sample`.

    Returns:
        `truths`, `draws`, `summaries` and `efficiency`, data sets first.
    """
    found: dict[str, list[np.ndarray]] = {name: [] for name in ("truths", "draws", "summaries", "efficiency")}
    bar = progress("data sets", number)
    for place in range(number):
        own = jax.random.fold_in(key, place)
        times = seirs.draw_times(jax.random.fold_in(own, 0), sites, num_times)
        truth, y = seirs.draw(jax.random.fold_in(own, 1), times)
        drawn = lf.sample(
            jax.random.fold_in(own, 2), jnp.asarray(times), y=jnp.asarray(y, float), num_samples=num_draws
        )
        found["truths"].append(np.append(truth["beta0"], truth["amplitude"]))
        found["draws"].append(np.column_stack([drawn["beta0"], drawn["amplitude"]]))
        found["summaries"].append(summarize(times, y))
        shares = (np.nan, np.nan) if lf.efficiency is None else lf.efficiency
        found["efficiency"].append(np.asarray(shares, float))
        bar.update(place + 1, f"{lf.timings['sample']:.1f} s")
    bar.close()
    return {name: np.stack(values) for name, values in found.items()}


def draw_prior(key: Array, shape: tuple[int, ...]) -> np.ndarray:
    """Draw latents from the prior, contact rates first, `[..., 1 + sites]`."""
    unit = np.asarray(jax.random.uniform(key, shape), float)
    ranges = np.array([seirs.BETA0_RANGE, *[seirs.AMPLITUDE_RANGE] * (shape[-1] - 1)])
    return ranges[:, 0] + np.ptp(ranges, axis=1) * unit


def main() -> None:
    """Print the p-values of both posteriors, and the coverage of central intervals."""
    import hsbi

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", required=True, help="the file of a trained estimator")
    parser.add_argument("--datasets", type=int, default=200)
    parser.add_argument("--sites", type=int, default=20)
    parser.add_argument("--times", type=int, default=12)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    lf = hsbi.load(options.load, seirs.model, progress=False)
    key = jax.random.fold_in(jax.random.key(77), options.seed)
    started = time.perf_counter()
    found = collect(lf, key, options.datasets, options.sites, options.times, options.draws)
    seconds = time.perf_counter() - started
    truths, draws = found["truths"], found["draws"]
    prior = draw_prior(jax.random.fold_in(key, options.datasets), draws.shape)
    references = make_references(truths, found["summaries"])
    test_key = jax.random.fold_in(key, options.datasets + 1)
    columns = [assess(test_key, truths, each, references) for each in (draws, prior)]
    print(f"{options.datasets} data sets of {options.sites} sites, {seconds / options.datasets:.1f} s each")
    print(f"{'p-values':22}{'hsbi':>12}{'the prior':>12}")
    for name, value in columns[0].items():
        print(f"{name:22}{value:12.4g}{columns[1][name]:12.4g}")
    shares = np.quantile(found["efficiency"], [0.0, 0.1, 0.5], axis=0)
    print("efficiency of globals and locals, smallest, 10 % and median:", np.round(shares, 3).tolist())
    for name, part in (("beta0", np.s_[..., :1]), ("amplitudes", np.s_[..., 1:])):
        cover = np.mean(coverage(test_key, truths[part], draws[part], _LEVELS).observed, axis=-1)
        print(f"coverage of {name} at {_LEVELS}: {np.round(cover, 3).tolist()}")


if __name__ == "__main__":
    main()
