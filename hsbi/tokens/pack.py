"""Values of a token sequence: pack them from variables, and unpack them again."""

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from hsbi.model.structure import Level
from hsbi.tokens.layout import Layout, Variable


class Tokens(NamedTuple):
    """The values of a sequence, or of many with leading axes.

    Attributes:
        values: `[..., T, width]`, zero where a token is narrower.
        mask: `[..., T, width]`, true where a value is real.
        inputs: `[..., T, d]`, functional inputs, zero where there are none.
    """

    values: Array
    mask: Array
    inputs: Array


def pack(layout: Layout, values: Mapping[str, Array], inputs: Mapping[str, Array] | None = None) -> Tokens:
    """Lay variables out as one sequence.

    Args:
        layout: The layout.
        values: By variable, `[..., rows, size]` for globals and `[..., S, rows, size]` for locals and observations.
        inputs: Functional inputs by observation, `[..., S, rows, d]`.
    """
    inputs = {} if inputs is None else inputs
    parts = [_pack_level(layout, level, values, inputs) for level in ("global", "local", "observation")]
    present = [part for part in parts if part is not None]
    joined = [jnp.concatenate(fields, axis=-2) for fields in zip(*present, strict=True)]
    return Tokens(joined[0], joined[1].astype(bool), joined[2])


def _pack_level(
    layout: Layout, level: Level, values: Mapping[str, Array], inputs: Mapping[str, Array]
) -> tuple[Array, Array, Array] | None:
    """Lay out one level, group by group; None where it has no variables."""
    variables = layout.of_level(level)
    if not variables:
        return None
    fields = ([], [], [])
    for variable in variables:
        value = values[variable.name]
        lead = value.shape[:-2]
        for field, array in zip(fields, _pack_variable(layout, variable, value, inputs), strict=True):
            field.append(jnp.broadcast_to(array, (*lead, *array.shape[-2:])))
    joined = [jnp.concatenate(field, axis=-2) for field in fields]
    if level != "global":
        joined = [
            array.reshape(*array.shape[:-3], array.shape[-3] * array.shape[-2], array.shape[-1]) for array in joined
        ]
    return joined[0], joined[1], joined[2]


def _pack_variable(
    layout: Layout, variable: Variable, value: Array, inputs: Mapping[str, Array]
) -> tuple[Array, Array, Array]:
    lead = value.shape[:-2]
    padding = variable.tokens_per_row * layout.width - variable.size
    pad = [(0, 0)] * (value.ndim - 1) + [(0, padding)]
    tokens = jnp.pad(value, pad).reshape(*lead, variable.num_tokens, layout.width)
    real = jnp.pad(jnp.ones((variable.rows, variable.size)), [(0, 0), (0, padding)])
    mask = jnp.broadcast_to(real.reshape(variable.num_tokens, layout.width), tokens.shape)
    if variable.name not in inputs:
        return tokens, mask, jnp.zeros((*lead, variable.num_tokens, layout.num_inputs))
    own = jnp.repeat(inputs[variable.name], variable.tokens_per_row, axis=-2)
    own = jnp.pad(own, [(0, 0)] * (own.ndim - 1) + [(0, layout.num_inputs - own.shape[-1])])
    return tokens, mask, own


def unpack(layout: Layout, values: Array) -> dict[str, Array]:
    """Undo `pack`.

    Args:
        layout: The layout.
        values: `[..., T, width]` of the whole sequence, or of the parameters alone.
    """
    variables: dict[str, Array] = {}
    start = 0
    lead = values.shape[:-2]
    for level in ("global", "local", "observation"):
        per_group = layout.tokens_per_group(level)
        groups = 1 if level == "global" else layout.num_sites
        stop = start + groups * per_group
        if stop > values.shape[-2]:
            break
        block = values[..., start:stop, :].reshape(*lead, groups, per_group, layout.width)
        offset = 0
        for variable in layout.of_level(level):
            own = block[..., offset : offset + variable.num_tokens, :]
            own = own.reshape(*lead, groups, variable.rows, -1)[..., : variable.size]
            variables[variable.name] = own[..., 0, :, :] if level == "global" else own
            offset += variable.num_tokens
        start = stop
    return variables
