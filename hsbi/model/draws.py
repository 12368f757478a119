"""Draws from the prior of a program, and what is computed from latents."""

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import Array

from hsbi.model.execution import Visit, execute, keep_data
from hsbi.model.program import Program
from hsbi.model.trace import canonicalize, restore


@functools.partial(jax.jit, static_argnames="num_draws")
def draw_latents(program: Program, key: Array, num_draws: int) -> dict[str, Array]:
    """Draw globals and locals from the prior.

    Draw i is a function of `fold_in(key, i)` alone. No simulator runs.

    Returns:
        By latent, draws first, then the canonical layout.
    """

    def draw_one(index: Array) -> dict[str, Array]:
        return _canonical(program, execute(program, jax.random.fold_in(key, index)).latents)

    return jax.vmap(draw_one)(jnp.arange(num_draws))


def redraw_locals(program: Program, key: Array, values: Mapping[str, Array]) -> dict[str, Array]:
    """Draw the locals of one draw again, given its globals, in canonical layout. No simulator runs."""

    def latent(visit: Visit) -> Array | None:
        return restore(visit.site, values[visit.site.name]) if visit.site.level == "global" else None

    drawn = _canonical(program, execute(program, key, latent=latent).latents)
    return {name: drawn[name] for name in program.structure.locals}


def recompute(program: Program, values: Mapping[str, Array]) -> dict[str, Array]:
    """Compute the deterministic sites of one draw from its latents, in canonical layout.

    Observations stand at their data, where there are any.
    """
    structure = program.structure
    run = execute(
        program,
        jax.random.key(0),
        latent=lambda visit: restore(visit.site, values[visit.site.name]),
        observe=keep_data,
    )
    return {name: canonicalize(structure[name], value) for name, value in run.deterministics.items()}


def _canonical(program: Program, values: Mapping[str, Array]) -> dict[str, Array]:
    """Bring values from the layout of the program to the canonical one."""
    return {name: canonicalize(program.structure[name], value) for name, value in values.items()}
