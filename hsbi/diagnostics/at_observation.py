"""The observed data beside simulated ones, and the posterior at them."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hsbi.diagnostics.classifier import Classifier
from hsbi.diagnostics.levels import robust_width
from hsbi.diagnostics.observation_check import ObservationCheck, check_observation
from hsbi.diagnostics.simulated import Summary, summarize_sets
from hsbi.diagnostics.two_sample import Lc2st, lc2st
from hsbi.inference.batch import Observed, site_features, standardize
from hsbi.inference.surrogate import Surrogate
from hsbi.model.program import Program
from hsbi.training import jit

_NUM_DRAWS = 500
_NUM_NULLS, _NUM_FOLDS, _NUM_SUMMARIES = 60, 2, 6
_CLASSIFIER = Classifier(width=16, num_steps=200)


def site_labels(program: Program, coords: Mapping[str, Sequence[Any]] | None = None) -> tuple[str, ...]:
    """Name the sites by their plate and by its members, which are counted from 0 where they have no names."""
    plate = program.structure.site_plate
    if plate is None:
        return ("the data",)
    members = (coords or {}).get(plate.name, range(plate.size))
    if len(members) != plate.size:
        raise ValueError(
            f"coords name {len(members)} members of plate {plate.name!r}, but the data have {plate.size}. Name each."
        )
    return tuple(f"{plate.name} {member}" for member in members)


def compare_observation(
    key: Array,
    program: Program,
    surrogates: tuple[Surrogate, ...],
    observed: Observed,
    values: Mapping[str, Array],
    summary: Summary,
    sites: np.ndarray,
    mask: np.ndarray,
    labels: tuple[str, ...],
) -> ObservationCheck:
    """Compare the observed data with simulated data sets and with replicates at posterior draws.

    Args:
        key: A random key for the replicates.
        program: The program of the observed data.
        surrogates: What replicates come from; without them there are none.
        observed: The observed data.
        values: Posterior draws of all latents.
        summary: The features of a site.
        sites: Those of simulated data sets, `[datasets, sites, features]`.
        mask: Which simulated sites are real, `[datasets, sites]`.
        labels: Names of the observed sites.
    """
    plate = program.structure.site_plate
    own = np.asarray(summary.sites(observed), float)
    simulated = summarize_sets(sites, mask)
    discrepancy = None
    if surrogates:
        chosen = {name: value[:_NUM_DRAWS] for name, value in values.items()}
        discrepancy = tuple(np.asarray(part, float) for part in _misfits(surrogates, program, observed, chosen, key))
    return check_observation(
        own,
        sites,
        _own_summary(own, mask),
        simulated,
        labels=labels,
        plate="" if plate is None else plate.name,
        mask=mask,
        discrepancy=discrepancy,  # pyright: ignore[reportArgumentType]
        num_known=_num_known(observed),
    )


def judge_locally(
    key: Array,
    truths: np.ndarray,
    draws: np.ndarray,
    sites: np.ndarray,
    mask: np.ndarray,
    observed_sites: np.ndarray,
    observed_draws: np.ndarray,
) -> Lc2st:
    """Test the globals at the observed data by `lc2st`, given one draw for each of many data sets.

    Args:
        key: A random key.
        truths: True globals, `[datasets, columns]`.
        draws: One draw each, likewise.
        sites: Features of their sites, `[datasets, sites, features]`.
        mask: Which sites are real.
        observed_sites: Features of the observed sites, `[sites, features]`.
        observed_draws: Posterior draws of the globals at the observed data, `[draws, columns]`.
    """
    simulated = summarize_sets(sites, mask)
    own = _own_summary(observed_sites, mask)
    center, scale = simulated.mean(0), simulated.std(0)
    scale = np.where(scale > 0, scale, 1.0)
    rows = (simulated - center) / scale
    _, _, directions = np.linalg.svd(rows, full_matrices=False)
    project = directions[:_NUM_SUMMARIES].T
    middle, width = np.median(truths, axis=0), robust_width(truths)

    def shrink(values: np.ndarray) -> np.ndarray:
        # Heavy tails would leave the bulk of a parameter to a sliver of the classifier's inputs.
        return np.arcsinh((values - middle) / width)

    return lc2st(
        key,
        shrink(truths),
        shrink(draws),
        rows @ project,
        shrink(observed_draws[:_NUM_DRAWS]),
        ((own - center) / scale) @ project,
        num_nulls=_NUM_NULLS,
        num_folds=_NUM_FOLDS,
        classifier=_CLASSIFIER,
    )


def _own_summary(sites: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Summarize one data set as `summarize_sets` does many."""
    parts = [sites.mean(0)] if mask.shape[1] == 1 else [sites.mean(0), sites.std(0)]
    return np.concatenate([*parts, [np.log(len(sites))] if np.ptp(mask.sum(1)) > 0 else []])


def _num_known(observed: Observed) -> np.ndarray:
    """Count the known values of each site."""
    return np.asarray(sum(jnp.sum(observed.known(name), axis=(1, 2, 3)) for name in observed.values))


@jit
def _misfits(
    surrogates: tuple[Surrogate, ...], program: Program, observed: Observed, values: dict[str, Array], key: Array
) -> tuple[Array, Array]:
    """Give the squared distance from the surrogates' location, in scales, of data and replicates, `[draws, sites]`."""

    def one(task: tuple[dict[str, Array], Array]) -> tuple[Array, Array]:
        draw, own_key = task
        totals = [jnp.zeros(observed.site_mask.shape[0]), jnp.zeros(observed.site_mask.shape[0])]
        for number, surrogate in enumerate(surrogates):
            features = site_features(program, surrogate, draw, observed.design)
            location, log_scale = surrogate.predict(features)
            drawn = surrogate.sample(jax.random.fold_in(own_key, number), features)
            replicate = standardize(surrogate.transform, surrogate.transform.decode(drawn))
            known = observed.known(surrogate.shape.name)
            for place, value in enumerate((observed.values[surrogate.shape.name], replicate)):
                squares = jnp.where(known, ((value - location) * jnp.exp(-log_scale)) ** 2, 0.0)
                totals[place] += jnp.sum(squares, axis=(1, 2, 3))
        return totals[0], totals[1]

    num_draws = next(iter(values.values())).shape[0]
    return jax.lax.map(one, (values, jax.random.split(key, num_draws)), batch_size=50)
