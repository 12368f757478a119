"""From draws for many data sets to the checks of each level."""

import itertools
from collections.abc import Mapping

import jax
import numpy as np
from jax import Array

from hsbi.diagnostics.evidence import Evidence
from hsbi.diagnostics.levels import LevelCheck, check_globals, check_joint, check_locals, weigh
from hsbi.diagnostics.simulated import Sets, column_names, summarize_sets
from hsbi.model.structure import Structure

# Data sets of a range of sizes are cut into so many groups by their number of sites.
_NUM_SIZES = 3
_MIN_SETS = 20


def calibrate(
    key: Array,
    structure: Structure,
    sets: Sets,
    sites: np.ndarray,
    mask: np.ndarray,
    prior: tuple[np.ndarray, np.ndarray],
) -> dict[str, LevelCheck]:
    """Check globals, locals and both together.

    Args:
        key: A random key for the ranks.
        structure: The model's structure.
        sets: Data sets with draws.
        sites: Features of all sites' data, `[datasets, sites, features]`.
        mask: Which of all sites are real, `[datasets, sites]`.
        prior: Prior draws of globals and of locals, `[draws, columns]` each.
    """
    keys = jax.random.split(key, 3)
    summary = summarize_sets(sites, mask)
    rows = np.arange(len(sites))[:, None]
    shared = np.broadcast_to(summary[:, None], (*sets.mask.shape, summary.shape[1]))
    own = np.concatenate([sites[rows, sets.place], shared], axis=-1)
    names = column_names(structure, structure.globals), column_names(structure, structure.locals)
    found: dict[str, LevelCheck] = {}
    if names[0]:
        found["globals"] = check_globals(
            keys[0], sets.globals, sets.global_draws, summary, columns=names[0], prior=prior[0]
        )
    if names[1]:
        found["locals"] = check_locals(
            keys[1], sets.locals, sets.local_draws, own, columns=names[1], mask=sets.mask, prior=prior[1]
        )
    weight = sets.mask[..., None] / sets.mask.sum(1)[:, None, None]
    truths = np.concatenate([sets.globals, np.sum(weight * sets.locals, axis=1)], axis=1)
    draws = np.concatenate([sets.global_draws, np.sum(weight[:, None] * sets.local_draws, axis=2)], axis=2)
    has_fit = bool(np.any(sets.fit)) and bool(np.all(np.isfinite(sets.fit)) and np.all(np.isfinite(sets.fit_draws)))
    if (names[0] and names[1]) or has_fit:
        found["joint"] = check_joint(
            keys[2],
            truths,
            draws,
            summary,
            columns=(*names[0], *(f"mean of {name}" for name in names[1])),
            log_likelihood=(sets.fit, sets.fit_draws) if has_fit else None,
            mask=sets.mask,
        )
    return found


def weigh_sizes(levels: Mapping[str, LevelCheck], num_sites: np.ndarray) -> list[Evidence]:
    """Weigh globals and pooled locals in groups of data sets with few, some and many sites; none if all have the same.

    Ranks of every quantity are weighed, and ranks of distances to a guess from the data, which see a posterior that
    ignores them where sites are few.

    Args:
        levels: The checks of `globals` and `locals`; others are left out.
        num_sites: The number of sites of each data set, `[datasets]`.
    """
    if np.ptp(num_sites) == 0:
        return []
    edges = np.unique(np.quantile(num_sites, np.linspace(0, 1, _NUM_SIZES + 1)).round())
    found = []
    for low, high in itertools.pairwise(edges):
        rows = (num_sites >= low) & ((num_sites < high) | (high == edges[-1]))
        if rows.sum() < _MIN_SETS:
            continue
        where = f"with {num_sites[rows].min():.0f} to {num_sites[rows].max():.0f} sites"
        for level in (levels[name] for name in ("globals", "locals") if name in levels):
            mask = level.mask[rows]
            for column, name in enumerate(level.columns):
                found.append(weigh(f"{name} {where}", level.ranks[rows, :, column], mask))
            distance = weigh(f"distance of {level.level} to a guess {where}", level.distance_ranks[rows], mask)
            found.append(distance._replace(derived=True))
    return found
