"""What the arguments of a program hold: data, masks, functional inputs and covariates."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from hsbi.model.bijections import strip_independent
from hsbi.model.execution import Visit, execute, keep_data, stand_in
from hsbi.model.program import Program, map_leaves
from hsbi.model.record import base_distribution
from hsbi.model.structure import Covariate
from hsbi.model.trace import canonicalize


def observed_data(program: Program) -> tuple[dict[str, Array], dict[str, Array]]:
    """Give the data and which of them were observed, in canonical layout.

    Returns:
        Data by observation, missing entries as they were given, and masks of equal shapes, True where a value is
        observed: not NaN, and neither `mask` nor `obs_mask` excludes it. Observations without data are left out.
    """
    data: dict[str, Array] = {}
    masks: dict[str, Array] = {}

    def read(visit: Visit) -> ArrayLike:
        if visit.data is not None:
            value = jnp.asarray(visit.data)
            if program.by_plate and program.indices is not None and value.shape != visit.shape:
                value = jnp.take(value, program.indices, axis=visit.site.plate_axes[0])
            value = jnp.broadcast_to(value, visit.shape)
            data[visit.site.name] = canonicalize(visit.site, value)
            masks[visit.site.name] = canonicalize(visit.site, _mask(visit) & ~jnp.isnan(value))
        return keep_data(visit)

    execute(program, jax.random.key(0), observe=read)
    return data, masks


def observation_masks(program: Program) -> dict[str, Array]:
    """Give which entries of each observation are observed, in canonical layout; with or without data.

    An entry is missing where its data are NaN, or where `mask` or `obs_mask` excludes it. Observations that are
    complete are left out.
    """
    masks: dict[str, Array] = {}

    def read(visit: Visit) -> ArrayLike:
        if visit.data is None:
            masks[visit.site.name] = canonicalize(visit.site, _mask(visit))
        return keep_data(visit)

    execute(program, jax.random.key(0), observe=read)
    masks |= observed_data(program)[1]
    return {name: mask for name, mask in masks.items() if not np.all(mask)}


def refuse_impossible_counts(program: Program) -> None:
    """Refuse data at a count site that are fractional or outside the support; missing values pass.

    Raises:
        ValueError: Names the site and the first bad value.
    """

    def read(visit: Visit) -> ArrayLike:
        if visit.data is not None and visit.site.discrete:
            value = np.broadcast_to(np.asarray(visit.data), visit.shape)
            # Entry by entry where it can be: one missing entry must not condemn the others of its event.
            support, _ = strip_independent(visit.support)
            inside = np.asarray(support(jnp.asarray(value)))
            inside = inside.reshape(inside.shape + (1,) * (value.ndim - inside.ndim))
            wrong = np.broadcast_to(~inside & ~np.isnan(value), value.shape)
            if wrong.any():
                raise ValueError(
                    f"Data of {visit.site.name!r} contain {value[wrong][0]}, expected counts within {visit.support}. "
                    "Correct the data, or give the site a distribution that can produce them."
                )
        return keep_data(visit)

    execute(program, jax.random.key(0), observe=read)


def _mask(visit: Visit) -> Array:
    """Give the product of the masks on a distribution, in the shape of its value."""
    mask = jnp.ones(visit.shape, bool)
    base = base_distribution(visit.fn)
    inner: Any = visit.fn
    while inner is not base:
        excluded = getattr(inner, "_mask", None)
        if excluded is not None:
            batch = jnp.broadcast_to(jnp.asarray(excluded), inner.batch_shape)
            mask &= jnp.broadcast_to(batch.reshape(batch.shape + (1,) * inner.event_dim), visit.shape)
        inner = inner.base_dist
    return mask


def functional_inputs(program: Program) -> dict[str, Array]:
    """Give the functional inputs of each observation that has them.

    Returns:
        By observation, an array of the observation's canonical shape with one axis more, the dimensions of the input.
    """
    inputs: dict[str, Array] = {}

    def read(visit: Visit) -> ArrayLike:
        if visit.inputs is not None:
            inputs[visit.site.name] = canonical_inputs(visit)
        return stand_in(visit)

    execute(program, jax.random.key(0), observe=read)
    return inputs


def canonical_inputs(visit: Visit) -> Array:
    """Give every entry of an observation its own input, in canonical layout with the input's dimensions last."""
    inputs = jnp.asarray(visit.inputs, float)
    shape = tuple(visit.shape)
    if not _fits(inputs.shape, shape) and _fits(inputs.shape[:-1], shape):
        full = jnp.broadcast_to(inputs, (*shape, inputs.shape[-1]))
    elif _fits(inputs.shape, shape):
        full = jnp.broadcast_to(inputs, shape)[..., None]
    else:
        raise ValueError(
            f"Functional inputs of {visit.site.name!r} have shape {inputs.shape}, which fits neither the site's shape "
            f"{shape} nor that shape with one axis more. Pass one input per entry of the observation."
        )
    return jnp.stack([canonicalize(visit.site, full[..., k]) for k in range(full.shape[-1])], axis=-1)


def _fits(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Say whether a shape broadcasts to another."""
    try:
        return np.broadcast_shapes(shape, target) == target
    except ValueError:
        return False


def site_covariates(program: Program) -> tuple[Array, tuple[str, ...]]:
    """Give the covariates of each site, without data and functional inputs.

    Returns:
        An array with one row per site, its columns the flattened covariates in the order of the structure, and one
        name per column.
    """
    wanted = {
        covariate.path: covariate
        for covariate in program.structure.covariates
        if covariate.data is None and covariate.path not in program.input_paths
    }
    columns: dict[str, Array] = {}

    def read(path: str, leaf: Any) -> Any:
        if path in wanted:
            rows = leaf if not program.by_plate or program.indices is None else _rows(leaf, wanted[path], program)
            rows = jnp.moveaxis(jnp.asarray(rows), wanted[path].axis, 0)
            columns[path] = rows.reshape(program.num_sites, -1).astype(float)
        return leaf

    map_leaves(read, program.arguments)
    names = [
        path if columns[path].shape[1] == 1 else f"{path}[{column}]"
        for path in wanted
        for column in range(columns[path].shape[1])
    ]
    parts = [columns[path] for path in wanted]
    return jnp.concatenate([jnp.zeros((program.num_sites, 0)), *parts], axis=1), tuple(names)


def _rows(leaf: Any, covariate: Covariate, program: Program) -> Array:
    assert program.indices is not None
    return jnp.take(leaf, program.indices, axis=covariate.axis)
