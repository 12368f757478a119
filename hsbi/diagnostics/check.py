"""One call that says, level by level, whether a trained posterior can be believed."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hsbi.diagnostics.at_observation import compare_observation, judge_locally, site_labels
from hsbi.diagnostics.calibration import calibrate, weigh_sizes
from hsbi.diagnostics.held_out import MIN_ROWS, as_rows, compare_surrogate, join_rows
from hsbi.diagnostics.lines import (
    Draft,
    level_line,
    local_line,
    observation_line,
    sizes_line,
    surrogate_line,
    unknown_surrogate_line,
)
from hsbi.diagnostics.report import Report
from hsbi.diagnostics.simulated import (
    Sets,
    Summary,
    draw_batch,
    draw_posteriors,
    draw_prior,
    fit_summary,
    flatten,
    site_summaries,
)
from hsbi.inference.arrays import read_design
from hsbi.inference.base import Inference
from hsbi.inference.batch import Batch, Synthetic
from hsbi.inference.joint import JointPosterior
from hsbi.inference.lf import LF
from hsbi.model.program import Program
from hsbi.model.simulate import Simulations, calls_per_site, simulate_all, simulate_sites
from hsbi.training import Progress, jit, no_progress

_MIN_DATA_SETS, _MIN_DRAWS, _MIN_REAL = 50, 19, 20
# Data sets without draws, to compare the observed data with, by the number of sites; the first have one draw each.
_REFERENCE_SITES, _MIN_REFERENCE, _MAX_REFERENCE, _NUM_LOCAL = 200_000, 500, 4000, 1000
_CHUNK_SITES = 2**14
# Prior draws that contraction is relative to; fewer where sites are many, whose locals they hold too.
_MIN_PRIOR, _MAX_PRIOR, _PRIOR_SITES = 200, 2000, 400_000
_ADVICE = {
    "globals": "train the posterior longer: FactorizedConfig(head=..., flow=...) with more num_steps, or wider",
    "locals": "train the posterior longer: FactorizedConfig(flow=...) with more num_steps, or wider",
    "joint": "globals and locals do not fit each other; train longer, or try JointConfig",
}
_JOINT_ADVICE = "train the posterior longer: JointConfig(fit=...) with more num_steps, or wider"
_REAL_ADVICE = "where synthetic data sets are trusted the surrogate is at fault: more simulations"


class _Reference(NamedTuple):
    """Data sets to compare the observed data with: the first of them, and features of all."""

    first: Batch
    sites: np.ndarray
    mask: np.ndarray


def check(
    lf: Inference,
    rng_key: Array,
    *,
    num_data_sets: int = 200,
    num_draws: int = 100,
    num_simulations: int = 0,
    coords: Mapping[str, Sequence[Any]] | None = None,
    progress: Progress | bool = True,
) -> Report:
    """Check a trained estimator: calibration of every level, the surrogates, and the observed data.

    Synthetic data sets come from the surrogates and cost no simulation. What depends on the observed data is judged at
    those of the last `run` or `sample`.

    Args:
        lf: A trained `LF`; or one without surrogates, such as `Direct`, `PF` or an `LF` with one shared network, which
            needs `num_simulations` for data sets of its own.
        rng_key: A random key.
        num_data_sets: Synthetic data sets with known latents. 200 show a bias of 0.4 standard deviations.
        num_draws: Posterior draws for each.
        num_simulations: Calls of the real simulator that the check may make, counted in the ledger under `check`: for
            whole data sets if there are enough for 20, else for the check of the surrogates alone.
        coords: Names of the plate's members in the observed data, by plate, as `to_arviz` takes them.
        progress: Whether to show progress as the estimator does, or a callback that does.

    Returns:
        A report to print, plot, or write as a page.

    Raises:
        ValueError: If the estimator is not trained, or if there are too few data sets or draws to tell anything.
    """
    lf._trained()
    _check_numbers(num_data_sets, num_draws, num_simulations)
    watch = lf._progress if progress is True else no_progress if progress is False else progress
    labels = () if lf._drawn is None else site_labels(lf._drawn[0], coords)
    started = time.perf_counter()
    keys = jax.random.split(rng_key, 7)
    source = lf._source() if isinstance(lf, LF) and lf.surrogate else None
    program = lf._program
    assert program is not None
    before = lf.ledger["check"]
    real = _simulate_sets(lf, keys[0], program, num_simulations, watch)
    if source is None and real is None:
        raise ValueError(
            f"{type(lf).__name__} has no surrogate to make data sets from. Pass num_simulations={_MIN_REAL} x the "
            f"number of sites or more; one data set of it takes {program.num_sites * calls_per_site(program)}."
        )
    batch, reference, summary = _make_sets(keys[1], source, real, num_data_sets, lf)
    drafts: list[Draft] = []
    sets, sites, mask = _draw(keys[2], lf, program, batch, summary, num_draws, "check: draws", watch)
    globals_, locals_ = draw_prior(program, jax.random.fold_in(keys[3], 0), _num_prior(program.num_sites))
    prior = np.asarray(globals_, float), np.asarray(locals_, float)
    levels = calibrate(keys[3], program.structure, sets, sites, mask, prior)
    factorized = not isinstance(lf.posterior, JointPosterior)
    advice = _ADVICE if factorized else dict.fromkeys(_ADVICE, _JOINT_ADVICE)
    drafts += [level_line(name, level, advice[name]) for name, level in levels.items()]
    by_size = weigh_sizes(levels, mask.sum(1))
    drafts += [sizes_line(by_size)] if by_size else []
    real_levels = {}
    if real is not None and source is not None:
        own = _draw(keys[4], lf, program, real.batch, summary, num_draws, "check: draws for real data sets", watch)
        real_levels = calibrate(jax.random.fold_in(keys[3], 1), program.structure, *own, prior)
        drafts += [level_line(f"{name}, real simulator", level, _REAL_ADVICE) for name, level in real_levels.items()]
    surrogates, surrogate_drafts = _check_surrogates(keys[5], lf, program, real, num_simulations)
    observation, local_test = _check_observation(keys[6], lf, program, reference, summary, labels, watch)
    drafts += surrogate_drafts
    drafts += [] if observation is None else [observation_line(observation)]
    drafts += [] if local_test is None else [local_line(local_test)]
    return Report(
        lines=tuple(draft(len(drafts)) for draft in drafts),
        levels=levels,
        real_levels=real_levels,
        surrogates=surrogates,
        observation=observation,
        local_test=local_test,
        num_sites=mask.sum(1),
        places=sets.place[0],
        structure=program.structure,
        num_data_sets=len(sets.mask),
        num_draws=num_draws,
        num_simulations=lf.ledger["check"] - before,
        seconds=time.perf_counter() - started,
    )


def _check_numbers(num_data_sets: int, num_draws: int, num_simulations: int) -> None:
    for name, value, least in (
        ("num_data_sets", num_data_sets, _MIN_DATA_SETS),
        ("num_draws", num_draws, _MIN_DRAWS),
        ("num_simulations", num_simulations, 0),
    ):
        if value < least:
            raise ValueError(f"{name} is {value}, expected at least {least}; fewer cannot tell right from wrong.")


def _num_prior(num_sites: int) -> int:
    return int(np.clip(_PRIOR_SITES // num_sites, _MIN_PRIOR, _MAX_PRIOR))


class _Real(NamedTuple):
    """Data sets from the real simulator, if there are enough, and all of its sites as rows."""

    batch: Batch
    rows: Simulations


def _simulate_sets(lf: Inference, key: Array, program: Program, budget: int, watch: Progress) -> _Real | None:
    """Spend the budget on whole data sets, if it suffices for enough of them."""
    num_sets = budget // (program.num_sites * calls_per_site(program))
    if num_sets < _MIN_REAL:
        return None
    bar = watch("check: real data sets", num_sets)
    values, observations = simulate_all(
        program,
        key,
        num_sets,
        ledger=lf.ledger,
        phase="check",
        progress=lambda done, total, note: bar.update(done, note),
        caller=lf.execution,
    )
    bar.close()
    posterior, design = lf._trained(), read_design(program)

    def one(values: dict[str, Array], data: dict[str, Array]) -> Batch:
        observed = posterior.view.observe(data, design)
        return Batch(jnp.arange(program.num_sites), posterior.coordinates.encode(program, values), observed)

    batch = jit(jax.vmap(one))(values, observations)
    # Given the data, the latents of data sets without failures are distributed as those of all.
    parts = [*batch.observed.values.values(), batch.latents.globals, batch.latents.locals]
    usable = np.logical_and.reduce([np.isfinite(part).reshape(num_sets, -1).all(1) for part in parts])
    if usable.sum() < _MIN_REAL:
        raise ValueError(
            f"{usable.sum()} of {num_sets} data sets are without failed simulations, expected {_MIN_REAL}. Raise "
            "num_simulations, or check the simulator."
        )
    kept = jax.tree.map(lambda array: array[np.flatnonzero(usable)], batch)
    return _Real(kept, as_rows(program, values, observations))


def _make_sets(
    key: Array, source: Synthetic | None, real: _Real | None, num_data_sets: int, lf: Inference
) -> tuple[Batch, _Reference, Summary]:
    """Give the data sets to draw for, those to compare observed data with, and the features of both."""
    if source is None:
        assert real is not None
        summary = fit_summary(real.batch.observed)
        sites, mask = _features(summary, real.batch)
        return real.batch, _Reference(real.batch, sites, mask), summary
    high = source.num_sites[1]
    total = int(np.clip(_REFERENCE_SITES // high, _MIN_REFERENCE, _MAX_REFERENCE))
    size = int(np.clip(_CHUNK_SITES // high, 10, _MIN_REFERENCE))
    batch_key, *keys = jax.random.split(key, 1 + -(-total // size))
    parts = [draw_batch(source, own, size) for own in keys[: -(-_NUM_LOCAL // size)]]
    first = jax.tree.map(lambda *arrays: jnp.concatenate(arrays), *parts)
    summary = fit_summary(first.observed)
    features = [_features(summary, first)]
    features += [_features(summary, draw_batch(source, own, size)) for own in keys[len(parts) :]]
    sites, mask = (np.concatenate(one) for one in zip(*features, strict=True))
    batches = [draw_batch(source, jax.random.fold_in(batch_key, n), size) for n in range(-(-num_data_sets // size))]
    batch = jax.tree.map(lambda *arrays: jnp.concatenate(arrays)[:num_data_sets], *batches)
    return batch, _Reference(first, sites, mask), summary


def _features(summary: Summary, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(site_summaries(summary, batch.observed), float), np.asarray(batch.observed.site_mask)


def _draw(
    key: Array,
    lf: Inference,
    program: Program,
    batch: Batch,
    summary: Summary,
    num_draws: int,
    name: str,
    watch: Progress,
) -> tuple[Sets, np.ndarray, np.ndarray]:
    """Draw for every data set, and give features and masks of all sites beside; failures are left out."""
    bar = watch(name, batch.index.shape[0])
    sets = draw_posteriors(lf._trained(), lf._surrogates(), program, batch, key, num_draws, bar.update)
    bar.close()
    usable = np.flatnonzero(sets.usable())
    if usable.size < _MIN_REAL:
        raise ValueError(
            f"Only {usable.size} of {len(sets.mask)} data sets have finite draws. The posterior is broken: look at the "
            "losses of training, and train again."
        )
    sites, mask = _features(summary, batch)
    return sets.take(usable), sites[usable], mask[usable]


def _check_surrogates(
    key: Array, lf: Inference, program: Program, real: _Real | None, budget: int
) -> tuple[dict[str, Any], list[Draft]]:
    """Check each surrogate on simulations held out of its training and on those made now."""
    if not isinstance(lf, LF):
        return {}, []
    new = [] if real is None else [real.rows]
    if real is None and budget // calls_per_site(program) >= MIN_ROWS and program.route != "whole":
        count = budget // calls_per_site(program)
        new = [simulate_sites(program, key, count, ledger=lf.ledger, phase="check", caller=lf.execution)]
    near = None if lf._drawn is None else (lf._drawn[0], lf._drawn[1])
    found, drafts = {}, []
    for number, (name, surrogate) in enumerate(lf.surrogate.items()):
        held_out = lf._held_out_rows(name)
        rows = join_rows([*([] if held_out is None else [held_out]), *new])
        own_key = jax.random.fold_in(key, number + 1)
        checked = None if rows is None else compare_surrogate(own_key, program, surrogate, rows, near)
        if checked is None:
            drafts.append(unknown_surrogate_line(name))
            continue
        found[name] = checked
        drafts.append(surrogate_line(checked, program.num_sites, lf.num_simulations))
    return found, drafts


def _check_observation(
    key: Array,
    lf: Inference,
    program: Program,
    reference: _Reference,
    summary: Summary,
    labels: tuple[str, ...],
    watch: Progress,
) -> tuple[Any, Any]:
    """Check the observed data and the globals at them, if the estimator has drawn for any."""
    if lf._drawn is None:
        return None, None
    keys = jax.random.split(key, 3)
    own, values, _ = lf._drawn
    posterior = lf._trained()
    observed = posterior.view.observe(lf._read_data(own), read_design(own))
    latents = {name: values[name] for name in (*own.structure.globals, *own.structure.locals)}
    found = compare_observation(
        keys[0], own, lf._surrogates(), observed, latents, summary, reference.sites, reference.mask, labels
    )
    if not own.structure.globals:
        return found, None
    sets, sites, mask = _draw(keys[1], lf, program, reference.first, summary, 1, "check: one draw each", watch)
    draws = jax.vmap(lambda one: flatten(own.structure.globals, one, None))(latents)
    bar = watch("check: globals at the data", 1)
    test = judge_locally(
        keys[2],
        sets.globals,
        sets.global_draws[:, 0],
        sites,
        mask,
        np.asarray(summary.sites(observed), float),
        np.asarray(draws, float),
    )
    bar.update(1)
    bar.close()
    return found, test
