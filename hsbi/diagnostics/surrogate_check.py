"""Check a surrogate on plain arrays: real simulations against its draws at the same parameters.

Given the parameters, a real simulation and draws of an exact surrogate are exchangeable, so the simulation's rank among
the draws is uniform: what ranks do for a posterior they do for a surrogate as well.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import jax
import numpy as np
from jax import Array

from hsbi.diagnostics.evidence import Evidence, t_test, weigh_clusters, weigh_ranks
from hsbi.diagnostics.ranks import as_truths_and_draws, sbc_ranks

# Entries of an observation that are tested one by one; more are tested together only.
_MAX_ENTRIES = 12
# Parameters are cut at their quintiles, and a region needs this many simulations.
_NUM_REGIONS, _MIN_ROWS = 5, 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class SurrogateCheck:
    """What was found of one observation's surrogate.

    Attributes:
        name: The observation.
        ranks: Ranks of real values among surrogate draws, `[simulations, entries]`.
        parameters: `[simulations, columns]`.
        columns: Names of the parameters.
        evidence: The tests.
        near: The surrogate's error among simulations near the posterior of the observed data, if there are any data.
        num_near: The number of those simulations.
    """

    name: str
    ranks: np.ndarray
    parameters: np.ndarray
    columns: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    near: Evidence | None = None
    num_near: int = 0


def check_surrogate(
    key: Array,
    real: np.ndarray,
    draws: np.ndarray,
    parameters: np.ndarray,
    *,
    name: str,
    columns: Sequence[str],
    near: np.ndarray | None = None,
) -> SurrogateCheck:
    """Compare real simulations with draws of a surrogate at the same parameters.

    Args:
        key: A random key for the ranks.
        real: Real simulations that the surrogate was not trained on, `[simulations, entries]`.
        draws: Surrogate draws at the same parameters, `[simulations, draws, entries]`.
        parameters: The parameters, `[simulations, columns]`.
        name: The observation.
        columns: Names of the parameters.
        near: Which simulations lie near the posterior of the observed data, `[simulations]`.
    """
    real, draws = as_truths_and_draws(real, draws)
    keys = jax.random.split(key, 2)
    ranks = sbc_ranks(keys[0], real, draws)
    evidence = []
    num_entries = ranks.shape[1]
    if num_entries <= _MAX_ENTRIES:
        labels = [name] if num_entries == 1 else [f"{name}[{entry}]" for entry in range(num_entries)]
        evidence += [weigh_ranks(label, ranks[:, entry]) for entry, label in enumerate(labels)]
    if num_entries > 1:
        evidence.append(weigh_clusters(f"all of {name}", ranks))
        evidence.append(weigh_ranks(f"spread of {name}", _energy_ranks(keys[1], real, draws))._replace(derived=True))
    worst = _worst_region(name, ranks, parameters, columns)
    if worst is not None:
        evidence.append(worst)
    close = None if near is None or near.sum() < _MIN_ROWS else weigh_clusters(f"{name} near the data", ranks[near])
    return SurrogateCheck(
        name=name,
        ranks=ranks,
        parameters=parameters,
        columns=tuple(columns),
        evidence=tuple(evidence),
        near=close,
        num_near=0 if close is None or near is None else int(near.sum()),
    )


def near_rows(parameters: np.ndarray, draws: np.ndarray, *, share: float = 0.2) -> np.ndarray:
    """Say which parameters lie nearest to posterior draws, `[simulations]`.

    Distances are taken to the mean of the draws, in units of the larger of their spread and a tenth of the prior's, so
    that a narrow posterior in one parameter does not decide alone.

    Args:
        parameters: `[simulations, columns]`.
        draws: Posterior draws of the same parameters, `[draws, columns]`.
        share: The share of simulations that are called near.
    """
    spread = np.maximum(draws.std(0), 0.1 * parameters.std(0))
    distance = np.linalg.norm((parameters - draws.mean(0)) / np.where(spread > 0, spread, 1.0), axis=1)
    return distance <= np.quantile(distance, share)


def _energy_ranks(key: Array, real: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Rank the squared distance from the center, in units of each entry's spread; sees errors in dependence."""
    members = np.concatenate([real[:, None], draws], axis=1)
    # Center and spread of all members, the real one too, treat them alike.
    center, spread = members.mean(1, keepdims=True), members.std(1, keepdims=True)
    energy = np.sum(((members - center) / np.where(spread > 0, spread, 1.0)) ** 2, axis=-1)
    return sbc_ranks(key, energy[:, 0], energy[:, 1:])


def _worst_region(name: str, ranks: np.ndarray, parameters: np.ndarray, columns: Sequence[str]) -> Evidence | None:
    """Find the fifth of a parameter's range where location or spread is most off; p-values count all regions."""
    averages = np.stack([np.mean(ranks - 0.5, axis=1), np.mean((ranks - 0.5) ** 2 - 1 / 12, axis=1)], axis=1)
    regions: list[tuple[float, str, np.ndarray]] = []
    for column, label in enumerate(columns):
        values = parameters[:, column]
        edges = np.unique(np.quantile(values, np.linspace(0, 1, _NUM_REGIONS + 1)))
        for low, high in itertools.pairwise(edges):
            rows = np.flatnonzero((values >= low) & ((values < high) | (high == edges[-1])))
            if rows.size >= _MIN_ROWS:
                where = f"{name} where {label} in [{low:.3g}, {high:.3g}]"
                regions.append((float(np.min(t_test(averages[rows]))), where, rows))
    if not regions:
        return None
    p_value, label, rows = min(regions, key=lambda region: region[0])
    return weigh_clusters(label, ranks[rows])._replace(p_value=min(1.0, p_value * 2 * len(regions)))
