"""The published figure of merit: local classifier two-sample tests of a method at one observation.

The protocol is the published one where it matters: classifiers of two hidden layers of 32 units, ten folds, 100 nulls.
Departures, for power and for a valid p-value: classifiers also see squares and products, train for a fixed number of
steps, nulls swap truth and draw within a data set, and p-values count the test itself. Data of all sites are too many
inputs for that, so what is tested are the globals with the means and log spreads of the data over sites, and the locals
of the first site with its own data.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from hsbi.bench.tasks.task import Task, stack
from hsbi.diagnostics import lc2st

_NUM_FOLDS, _NUM_NULLS = 10, 100


class Pairs(NamedTuple):
    """Truths, draws and data of simulated data sets.

    Attributes:
        truths: Latents by name, data sets first.
        draws: One draw of the method for each data set.
        data: The data.
    """

    truths: dict[str, np.ndarray]
    draws: dict[str, np.ndarray]
    data: np.ndarray


def draw_pairs(
    key: Array,
    task: Task,
    sample: Callable[[Array, np.ndarray, int], Mapping[str, Any]],
    num_sites: int,
    num_sets: int,
) -> Pairs:
    """Simulate data sets and draw once from the method given each.

    Args:
        key: A random key.
        task: The task.
        sample: `sample(key, y, num_draws)` draws from the method.
        num_sites: Number of sites.
        num_sets: Number of data sets.
    """
    truths, draws, data = [], [], []
    for number in range(num_sets):
        data_key, draw_key = jax.random.split(jax.random.fold_in(key, number))
        truth, y = task.draw(data_key, num_sites)
        drawn = {name: np.asarray(value)[0] for name, value in sample(draw_key, y, 1).items()}
        truths.append({name: truth[name] for name in (*task.global_names, *task.local_names)})
        draws.append({name: drawn[name] for name in truths[-1]})
        data.append(y)

    def join(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        return {name: np.stack([np.asarray(part[name]) for part in parts]) for name in parts[0]}

    return Pairs(join(truths), join(draws), np.stack(data))


def local_tests(
    key: Array, task: Task, pairs: Pairs, draws: Mapping[str, np.ndarray], y: np.ndarray
) -> dict[str, float]:
    """Test globals and the locals of the first site at one observation.

    Args:
        key: A random key.
        task: The task.
        pairs: Simulated data sets.
        draws: Draws of the method for the observation.
        y: The observation.

    Returns:
        Statistics and p-values by name.
    """
    found: dict[str, float] = {}
    for number, level in enumerate(("global", "local")):
        if level == "global":
            truths, guesses, own = (stack(part, task.global_names) for part in (pairs.truths, pairs.draws, draws))
            data, observed = summarize(pairs.data), summarize(y[None])[0]
        else:
            truths, guesses, own = (_first_site(part, task.local_names) for part in (pairs.truths, pairs.draws, draws))
            data, observed = _compress(pairs.data)[:, 0], _compress(y[None])[0, 0]
        test = lc2st(
            jax.random.fold_in(key, number),
            truths,
            guesses,
            data,
            own,
            observed,
            num_folds=_NUM_FOLDS,
            num_nulls=_NUM_NULLS,
        )
        found |= {f"{level}_lc2st": test.statistic, f"{level}_lc2st_p": test.p_value}
    return found


def summarize(data: np.ndarray) -> np.ndarray:
    """Give means and log spreads of data over sites, `[data sets, 2 d]`; sites come second."""
    seen = _compress(data)
    return np.concatenate([seen.mean(1), np.log(seen.std(1) + 1e-3)], axis=1)


def _compress(data: np.ndarray) -> np.ndarray:
    """Compress the tails, and flatten the data of each site, `[data sets, sites, d]`."""
    return np.arcsinh(np.asarray(data, float)).reshape(*data.shape[:2], -1)


def _first_site(draws: Mapping[str, np.ndarray], names: tuple[str, ...]) -> np.ndarray:
    return stack({name: np.asarray(draws[name])[:, 0] for name in names}, names)
