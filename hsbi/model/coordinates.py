"""Coordinates of the latents: unconstrained, with locals relative to the program's own conditional prior."""

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import Array

from hsbi.model import bijections
from hsbi.model.affine import Affine, conditional_affine
from hsbi.model.execution import Visit, execute
from hsbi.model.program import Program
from hsbi.model.trace import canonicalize, restore


def unconstrain(program: Program, values: Mapping[str, Array]) -> dict[str, Array]:
    """Give the coordinates of one draw.

    A global x becomes T^-1(x), with T the bijection of its support at the values of its parents. A local becomes
    z = (T^-1(x) - m) / s, with m and s location and scale of its conditional prior in that space: in a program
    `theta ~ Normal(mu, tau)`, z is (theta - mu) / tau.

    Args:
        program: The program, at the number of sites of the values.
        values: Every latent in canonical layout.

    Returns:
        A vector for each global, and an array `[num_sites, k]` for each local.
    """
    coordinates: dict[str, Array] = {}

    def visit_latent(visit: Visit) -> Array:
        value = restore(visit.site, values[visit.site.name])
        raw = bijections.unconstrain(visit.support, value)
        affine = _affine(visit, raw.shape)
        coordinates[visit.site.name] = _flatten(visit, raw if affine is None else affine.inverse(raw))
        return value

    execute(program, jax.random.key(0), latent=visit_latent)
    return coordinates


def constrain(program: Program, coordinates: Mapping[str, Array]) -> dict[str, Array]:
    """Give the values of one draw in canonical layout; the inverse of `unconstrain`."""
    return _constrain(program, coordinates)[0]


def log_prior(program: Program, coordinates: Mapping[str, Array]) -> Array:
    """Evaluate the log density of the prior in the coordinates, Jacobians included, over all latents of one draw."""
    _, of_globals, of_sites = _constrain(program, coordinates)
    return of_globals + jnp.sum(of_sites)


def constrain_with_prior(program: Program, coordinates: Mapping[str, Array]) -> tuple[dict[str, Array], Array, Array]:
    """Give the values of one draw, the log prior density of its globals, and that of each site's locals, `[S]`."""
    return _constrain(program, coordinates)


def coordinate_sizes(program: Program) -> dict[str, int]:
    """Give the number of coordinates of each latent: in all for a global, per site for a local."""
    sizes: dict[str, int] = {}

    def visit_latent(visit: Visit) -> None:
        count = math.prod(bijections.unconstrained_shape(visit.support, visit.shape))
        sizes[visit.site.name] = count // program.num_sites if visit.site.level == "local" else count

    jax.eval_shape(lambda: execute(program, jax.random.key(0), latent=visit_latent).latents)
    return sizes


def _constrain(program: Program, coordinates: Mapping[str, Array]) -> tuple[dict[str, Array], Array, Array]:
    values: dict[str, Array] = {}
    of_globals, of_sites = [jnp.zeros(())], [jnp.zeros(program.num_sites)]

    def add(visit: Visit, term: Array) -> None:
        if visit.site.level == "local":
            term = jnp.moveaxis(term, _site_axis(visit), 0)
            of_sites.append(jnp.sum(term.reshape(term.shape[0], -1), axis=-1))
        else:
            of_globals.append(jnp.sum(term))

    def visit_latent(visit: Visit) -> Array:
        support = visit.support
        shape = bijections.unconstrained_shape(support, visit.shape)
        raw = _unflatten(visit, coordinates[visit.site.name], shape)
        affine = _affine(visit, raw.shape)
        if affine is not None:
            raw = affine.forward(raw)
            add(visit, affine.log_scales())
        value = bijections.constrain(support, raw)
        add(visit, bijections.log_jacobian(support, raw))
        add(visit, jnp.asarray(visit.fn.log_prob(value)))
        values[visit.site.name] = canonicalize(visit.site, value)
        return value

    execute(program, jax.random.key(0), latent=visit_latent)
    return values, sum(of_globals[1:], of_globals[0]), sum(of_sites[1:], of_sites[0])


def _affine(visit: Visit, shape: tuple[int, ...]) -> Affine | None:
    return conditional_affine(visit.fn, shape) if visit.site.level == "local" else None


def _site_axis(visit: Visit) -> int:
    """Find the axis of the site plate, counted from the left of the program's layout."""
    return len(visit.shape) + visit.site.plate_axes[0]


def _flatten(visit: Visit, raw: Array) -> Array:
    """Bring an unconstrained value to a vector, or to one row per site."""
    if visit.site.level == "global":
        return raw.reshape(-1)
    rows = jnp.moveaxis(raw, _site_axis(visit), 0)
    return rows.reshape(rows.shape[0], -1)


def _unflatten(visit: Visit, coordinates: Array, shape: tuple[int, ...]) -> Array:
    """Undo `_flatten`, to the given shape."""
    if visit.site.level == "global":
        return jnp.asarray(coordinates).reshape(shape)
    axis = _site_axis(visit)
    rows = (shape[axis], *shape[:axis], *shape[axis + 1 :])
    return jnp.moveaxis(jnp.asarray(coordinates).reshape(rows), 0, axis)
