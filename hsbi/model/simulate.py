"""Simulate single sites or whole data sets from a program, with an honest count."""

import dataclasses
import warnings
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from hsbi.model.calls import Caller, InProcess
from hsbi.model.execution import Visit, draw, execute
from hsbi.model.failures import usable_rows
from hsbi.model.program import Program, take_sites, with_num_sites
from hsbi.model.rows import Row, default_chunk_size, has_sites, make_plan, run_once, visit_sites
from hsbi.model.runs import Job, Progress, Rows, Shelf, run_rows
from hsbi.model.structure import Structure
from hsbi.model.trace import restore

if TYPE_CHECKING:
    from hsbi.simulation.ledger import Ledger


class Simulations(NamedTuple):
    """Simulations of single sites, one per row.

    Attributes:
        index: The site of each row.
        values: Globals and locals by name, rows first, without the site axis.
        observations: Observations by name, rows first, without the site axis; NaN, or the smallest integer, where a
            simulation failed.
        status: How each observation's simulation ended, by name, as numbers of `hsbi.model.host.Status`.
    """

    index: Array  # pyright: ignore[reportIncompatibleMethodOverride]
    values: dict[str, Array]
    observations: dict[str, Array]
    status: dict[str, np.ndarray]

    @property
    def usable(self) -> np.ndarray:
        """Say which rows have every observation."""
        return usable_rows(self.status, self.index.shape[0])


def calls_per_site(program: Program) -> int:
    """Count the simulator calls of one single-site simulation: one per replicate of each `Simulator`, else one."""
    return make_plan(program).calls


def simulate_sites(
    program: Program,
    key: Array,
    num_simulations: int,
    *,
    ledger: "Ledger | None" = None,
    phase: str = "simulate",
    index: ArrayLike | None = None,
    progress: Progress | None = None,
    chunk_size: int | None = None,
    caller: Caller | None = None,
    shelf: Shelf | None = None,
) -> Simulations:
    """Draw latents from the prior and simulate one site for each.

    Row i is a function of key and i alone, whatever the chunks. By the route `whole` every site of a run is a row.

    Args:
        program: The program.
        key: The key of all rows.
        num_simulations: The number of rows.
        ledger: Counts the simulator calls that are made.
        phase: The phase they are counted under.
        index: The site of each row; shuffled cycles over all sites by default.
        progress: Called with the rows done, their total, and a note.
        chunk_size: The most rows that run at once; chosen by memory by default.
        caller: Where host simulators run; in this process by default.
        shelf: Where rows are kept as they are complete; nowhere by default.
    """
    if num_simulations < 1:
        raise ValueError(f"num_simulations is {num_simulations}, expected at least 1.")
    site_key, row_key = jax.random.split(key)
    if program.route == "whole":
        if index is not None:
            raise ValueError(f"The sites to simulate cannot be chosen: {program.reason} Leave out `index`.")
        num_runs = _warn_of_whole_runs(program, num_simulations)
        rows = _run_all(program, row_key, num_runs, ledger, phase, progress, chunk_size, caller, shelf)
        return _split_runs(program, rows)
    if index is None:
        sites = visit_sites(site_key, program.num_sites, num_simulations)
    else:
        sites = _check_index(program, index, num_simulations)
    structure = with_num_sites(program.structure, 1)
    in_memory = structure if program.route == "resize" else program.structure
    job = _make_job(program, structure, ledger, phase, progress, chunk_size, caller, shelf, in_memory)
    places = np.asarray(sites)
    job = dataclasses.replace(job, sites=places)
    collect = bool(job.plan.hosts)

    def run(numbers: np.ndarray) -> Row:
        chosen = places[np.minimum(numbers, num_simulations - 1)]
        return _site_rows(program, row_key, jnp.asarray(numbers), jnp.asarray(chosen), collect)

    rows = run_rows(run, num_simulations, job)

    def drop_site(values: dict[str, np.ndarray]) -> dict[str, Array]:
        return _to_jax({name: value[:, 0] if has_sites(structure, name) else value for name, value in values.items()})

    return Simulations(sites, drop_site(rows.values), drop_site(rows.observations), rows.status)


def _make_job(
    program: Program,
    structure: Structure,
    ledger: "Ledger | None",
    phase: str,
    progress: Progress | None,
    chunk_size: int | None,
    caller: Caller | None,
    shelf: Shelf | None = None,
    in_memory: Structure | None = None,
) -> Job:
    """Say how rows are run; chunks are bounded by the memory of a row of `in_memory`, its structure by default."""
    plan = make_plan(program)
    return Job(
        plan=plan,
        structure=structure,
        ledger=ledger,
        phase=phase,
        progress=progress,
        chunk_size=chunk_size or default_chunk_size(plan, in_memory or structure),
        caller=caller or InProcess(),
        shelf=shelf,
    )


def _to_jax(values: dict[str, np.ndarray]) -> dict[str, Array]:
    # Shares memory with aligned arrays on a CPU, where jnp.asarray would copy.
    return {name: jax.device_put(value) for name, value in values.items()}


def simulate_given(
    program: Program,
    key: Array,
    values: Mapping[str, Array],
    *,
    ledger: "Ledger | None" = None,
    phase: str = "simulate",
    progress: Progress | None = None,
    chunk_size: int | None = None,
    caller: Caller | None = None,
) -> dict[str, Array]:
    """Simulate all sites at given latents.

    Args:
        program: The program, by any route.
        key: The key of all draws; draw i uses `fold_in(key, i)`.
        values: Every latent, draws first, then the canonical layout.
        ledger: Counts the simulator calls that are made, one per site and draw.
        phase: The phase they are counted under.
        progress: Called with the draws done, their total, and a note.
        chunk_size: The most draws that run at once; chosen by memory by default.
        caller: Where host simulators run; in this process by default.

    Returns:
        By observation, draws first, then the canonical layout.
    """
    latents = (*program.structure.globals, *program.structure.locals)
    missing = [name for name in latents if name not in values]
    if missing:
        raise ValueError(f"Latents {missing} have no values, expected draws of all of them. Add them to `values`.")
    given = {name: jnp.asarray(values[name]) for name in latents}
    numbers_of_draws = {value.shape[0] for value in given.values()}
    if len(numbers_of_draws) != 1:
        raise ValueError(
            f"Latents have {sorted(numbers_of_draws)} draws, expected equally many along the first axis of each."
        )
    job = _make_job(program, program.structure, ledger, phase, progress, chunk_size, caller)
    total, collect = numbers_of_draws.pop(), bool(job.plan.hosts)

    def run(numbers: np.ndarray) -> Row:
        own = jnp.asarray(np.minimum(numbers, total - 1))
        chosen = {name: value[own] for name, value in given.items()}
        return _given_rows(program, key, jnp.asarray(numbers), chosen, collect)

    return _to_jax(run_rows(run, total, job).observations)


def simulate_chosen(
    program: Program,
    key: Array,
    values: Mapping[str, Array],
    draws: np.ndarray,
    sites: np.ndarray,
    *,
    ledger: "Ledger | None" = None,
    phase: str = "simulate",
    progress: Progress | None = None,
    caller: Caller | None = None,
) -> dict[str, Array]:
    """Simulate some sites of some draws, and no others.

    Args:
        program: The program, by any route but `whole`.
        key: The key of all rows; row i uses `fold_in(key, i)`.
        values: Every latent, draws first, then the canonical layout.
        draws: The draw of each row.
        sites: The site of each row.
        ledger: Counts the simulator calls that are made, one per row.
        phase: The phase they are counted under.
        progress: Called with the rows done, their total, and a note.
        caller: Where host simulators run; in this process by default.

    Returns:
        By observation, rows first, without the site axis.
    """
    if program.route == "whole":
        raise ValueError(
            f"The sites to simulate cannot be chosen: {program.reason} Simulate whole data sets, as hsbi.Direct does."
        )
    structure = with_num_sites(program.structure, 1)
    in_memory = structure if program.route == "resize" else program.structure
    job = _make_job(program, structure, ledger, phase, progress, None, caller, None, in_memory)
    given = {name: jnp.asarray(value) for name, value in values.items()}
    collect = bool(job.plan.hosts)

    def run(numbers: np.ndarray) -> Row:
        own = np.minimum(numbers, len(draws) - 1)
        chosen = {name: value[draws[own]] for name, value in given.items()}
        return _chosen_rows(program, key, jnp.asarray(numbers), jnp.asarray(sites[own]), chosen, collect)

    rows = run_rows(run, len(draws), job)
    return _to_jax(
        {name: value[:, 0] if has_sites(structure, name) else value for name, value in rows.observations.items()}
    )


def simulate_all(
    program: Program,
    key: Array,
    num_draws: int,
    *,
    ledger: "Ledger | None" = None,
    phase: str = "simulate",
    progress: Progress | None = None,
    chunk_size: int | None = None,
    caller: Caller | None = None,
    shelf: Shelf | None = None,
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Draw latents from the prior and simulate all sites for each draw.

    Draw i is a function of key and i alone.

    Args:
        program: The program, by any route.
        key: The key of all draws.
        num_draws: The number of draws.
        ledger: Counts the simulator calls that are made, one per site and draw.
        phase: The phase they are counted under.
        progress: Called with the draws done, their total, and a note.
        chunk_size: The most draws that run at once; chosen by memory by default.
        caller: Where host simulators run; in this process by default.
        shelf: Where draws are kept as they are complete; nowhere by default.

    Returns:
        Latents and observations, draws first, then the canonical layout.
    """
    rows = _run_all(program, key, num_draws, ledger, phase, progress, chunk_size, caller, shelf)
    return _to_jax(rows.values), _to_jax(rows.observations)


def _run_all(
    program: Program,
    key: Array,
    num_draws: int,
    ledger: "Ledger | None",
    phase: str,
    progress: Progress | None,
    chunk_size: int | None,
    caller: Caller | None,
    shelf: Shelf | None,
) -> Rows:
    job = _make_job(program, program.structure, ledger, phase, progress, chunk_size, caller, shelf)
    collect = bool(job.plan.hosts)
    return run_rows(lambda numbers: _all_rows(program, key, jnp.asarray(numbers), collect), num_draws, job)


def _warn_of_whole_runs(program: Program, num_simulations: int) -> int:
    num_sites = program.num_sites
    num_runs = max(1, num_simulations // num_sites)
    warnings.warn(
        f"The whole program is simulated {num_runs} times, which makes {num_runs * num_sites} single-site simulations "
        f"({num_simulations} were asked for), because {program.reason} Sites of one run share their globals, so only "
        f"{num_runs} values of the globals are seen.",
        UserWarning,
        stacklevel=3,
    )
    return num_runs


def _split_runs(program: Program, runs: Rows) -> Simulations:
    """Make every site of a whole run a row."""
    structure, num_sites = program.structure, program.num_sites
    num_runs = next(iter(runs.observations.values())).shape[0]

    def to_rows(name: str, value: np.ndarray) -> Array:
        if has_sites(structure, name):
            return jnp.asarray(value.reshape(num_runs * num_sites, *value.shape[2:]))
        return jnp.repeat(jnp.asarray(value), num_sites, axis=0)

    return Simulations(
        jnp.tile(jnp.arange(num_sites), num_runs),
        {name: to_rows(name, value) for name, value in runs.values.items()},
        {name: to_rows(name, value) for name, value in runs.observations.items()},
        {name: np.repeat(value, num_sites) for name, value in runs.status.items()},
    )


def _check_index(program: Program, index: ArrayLike, num_simulations: int) -> Array:
    sites = np.asarray(index)
    if sites.shape != (num_simulations,) or sites.dtype.kind not in "iu":
        raise ValueError(
            f"The site index has shape {sites.shape} and dtype {sites.dtype}, expected ({num_simulations},) integers, "
            "one per simulation."
        )
    if sites.min() < 0 or sites.max() >= program.num_sites:
        raise ValueError(
            f"The site index goes from {sites.min()} to {sites.max()}, expected 0 to {program.num_sites - 1}."
        )
    return jnp.asarray(sites)


@partial(jax.jit, static_argnames="collect")
def _site_rows(program: Program, key: Array, numbers: Array, sites: Array, collect: bool) -> Row:
    def one(number: Array, site: Array) -> Row:
        row_key = jax.random.fold_in(key, number)
        if program.route == "resize":
            return run_once(take_sites(program, site[None]), row_key, draw, collect)
        return run_once(program, row_key, draw, collect, site)

    return jax.vmap(one)(numbers, sites)


@partial(jax.jit, static_argnames="collect")
def _all_rows(program: Program, key: Array, numbers: Array, collect: bool) -> Row:
    prior_key, data_key = jax.random.split(key)

    def one(number: Array) -> Row:
        drawn = execute(program, jax.random.fold_in(prior_key, number)).latents

        def latent(visit: Visit) -> Array:
            return drawn[visit.site.name]

        return run_once(program, jax.random.fold_in(data_key, number), latent, collect)

    return jax.vmap(one)(numbers)


@partial(jax.jit, static_argnames="collect")
def _given_rows(program: Program, key: Array, numbers: Array, values: dict[str, Array], collect: bool) -> Row:
    def one(number: Array, value: dict[str, Array]) -> Row:
        def latent(visit: Visit) -> Array:
            return restore(visit.site, value[visit.site.name])

        return run_once(program, jax.random.fold_in(key, number), latent, collect)

    return jax.vmap(one)(numbers, values)


@partial(jax.jit, static_argnames="collect")
def _chosen_rows(
    program: Program, key: Array, numbers: Array, sites: Array, values: dict[str, Array], collect: bool
) -> Row:
    resized = program.route == "resize"

    def one(number: Array, site: Array, value: dict[str, Array]) -> Row:
        if resized:
            value = {
                name: own[site][None] if has_sites(program.structure, name) else own for name, own in value.items()
            }

        def latent(visit: Visit) -> Array:
            return restore(visit.site, value[visit.site.name])

        row_key = jax.random.fold_in(key, number)
        if resized:
            return run_once(take_sites(program, site[None]), row_key, latent, collect)
        return run_once(program, row_key, latent, collect, site)

    return jax.vmap(one)(numbers, sites, values)
