"""How far draws of a method are from draws of the exact posterior.

Every metric takes the two sets of draws and gives plain numbers. None is zero for exact draws, because both sets are
finite: the method `reference` measures that floor.
"""

from collections.abc import Mapping

import jax
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from hsbi.bench.tasks.task import Task, stack
from hsbi.diagnostics import c2st, mmd_test, sbc_ranks, sliced_wasserstein

# Sites whose locals are compared by themselves; sites are exchangeable, so the first ones are as good as any.
_NUM_SITES = 3
# Mass of the intervals whose coverage is recorded.
_MASS = 0.9
# Keeps the log finite for draws that are all equal.
_LEAST_RATIO = 1e-6

Draws = Mapping[str, ArrayLike]


def marginal_errors(draws: np.ndarray, exact: np.ndarray) -> tuple[float, float]:
    """Average the errors of all marginals.

    Args:
        draws: Draws of a method, `[draws, marginals]`.
        exact: Draws of the exact posterior, `[draws, marginals]`.

    Returns:
        Mean of |difference of means| / exact sd, and mean of |log ratio of sds|.
    """
    scale = exact.std(0)
    mean = np.abs(draws.mean(0) - exact.mean(0)) / scale
    ratio = np.maximum(draws.std(0) / scale, _LEAST_RATIO)
    return float(np.mean(mean)), float(np.mean(np.abs(np.log(ratio))))


def compare(key: Array, task: Task, draws: Draws, exact: Draws) -> dict[str, float]:
    """Measure draws of a method against draws of the exact posterior.

    Distances are taken in units of exact standard deviations. Those of locals are means over the first sites, each by
    itself; `all` are globals and all locals together.

    Args:
        key: A random key for classifiers, permutations and directions.
        task: The task.
        draws: Draws of the method by latent, with a leading axis of draws.
        exact: Draws of the exact posterior.

    Returns:
        The metrics by name.
    """
    globals_, locals_ = ((stack(draws, names), stack(exact, names)) for names in (task.global_names, task.local_names))
    errors = (*marginal_errors(*globals_), *marginal_errors(*locals_))
    names = ("global_mean_error", "global_log_sd_ratio", "local_mean_error", "local_log_sd_ratio")
    found = dict(zip(names, errors, strict=True))
    keys = jax.random.split(key, 3)
    found |= {f"global_{name}": value for name, value in _distances(keys[0], *_scale(*globals_)).items()}
    num_sites = np.asarray(exact[task.local_names[0]]).shape[1]
    sites = []
    for site in range(min(_NUM_SITES, num_sites)):
        one = [
            stack({name: np.asarray(part[name])[:, site] for name in task.local_names}, task.local_names)
            for part in (draws, exact)
        ]
        sites.append(_distances(jax.random.fold_in(keys[1], site), *_scale(*one)))
    found |= {f"local_{name}": float(np.mean([site[name] for site in sites])) for name in sites[0]}
    everything = _scale(*(np.concatenate(pair, axis=1) for pair in zip(globals_, locals_, strict=True)))
    test = mmd_test(keys[2], *everything)
    found |= {"all_mmd2": test.squared, "all_mmd_p": test.p_value}
    found["all_wasserstein"] = sliced_wasserstein(keys[2], *everything)
    return found


def calibration(key: Array, task: Task, draws: Draws, truth: Draws) -> dict[str, float | list[float]]:
    """Rank the true latents among the draws, for tests over many observations.

    Args:
        key: A random key that breaks ties.
        task: The task.
        draws: Draws of the method by latent, with a leading axis of draws.
        truth: The latents that the data came from.

    Returns:
        Ranks in [0, 1) of globals and of locals, and the share of each that central intervals of 90 % cover.
    """
    found: dict[str, float | list[float]] = {}
    for number, (level, names) in enumerate((("global", task.global_names), ("local", task.local_names))):
        own = stack(draws, names)
        true = stack({name: np.asarray(truth[name])[None] for name in names}, names)
        ranks = sbc_ranks(jax.random.fold_in(key, number), true, own[None])[0]
        found[f"{level}_ranks"] = [round(float(rank), 6) for rank in ranks]
        found[f"{level}_coverage"] = float(np.mean(np.abs(ranks - 0.5) <= _MASS / 2))
    return found


def _scale(draws: np.ndarray, exact: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    center, scale = exact.mean(0), exact.std(0)
    return (draws - center) / scale, (exact - center) / scale


def _distances(key: Array, draws: np.ndarray, exact: np.ndarray) -> dict[str, float]:
    keys = jax.random.split(key, 3)
    test = mmd_test(keys[1], draws, exact)
    return {
        "c2st": c2st(keys[0], draws, exact).accuracy,
        "mmd2": test.squared,
        "mmd_p": test.p_value,
        "wasserstein": sliced_wasserstein(keys[2], draws, exact),
    }
