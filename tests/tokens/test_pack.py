"""`pack` and `unpack` as exact inverses, and the mask as the set of real entries."""

import functools

import jax
import numpy as np
import pytest

from hsbi.tokens import make_layout, pack, unpack
from tests.tokens.structures import CASES, structure_of

BATCH = 2
_pack = jax.jit(pack, static_argnums=0)
_unpack = jax.jit(unpack, static_argnums=0)


def draw(layout, lead=(), seed=0):
    """Give nonzero values and inputs of every variable, `[*lead, (S,) rows, size]`."""
    rng = np.random.default_rng(seed)
    values, inputs = {}, {}
    for variable in layout.variables:
        sites = () if variable.level == "global" else (layout.num_sites,)
        shape = (*lead, *sites, variable.rows)
        values[variable.name] = rng.uniform(1, 2, (*shape, variable.size)).astype(np.float32)
        if variable.inputs:
            inputs[variable.name] = rng.uniform(1, 2, (*shape, variable.inputs)).astype(np.float32)
    return values, inputs


@functools.cache
def case(name):
    """Give a layout, values, inputs and their tokens, packed once for all tests."""
    layout = make_layout(structure_of(name))
    values, inputs = draw(layout, (BATCH,))
    return layout, values, inputs, jax.tree.map(np.asarray, _pack(layout, values, inputs))


@pytest.fixture(params=CASES)
def packed(request):
    return case(request.param)


def test_unpack_undoes_pack_exactly(packed):
    layout, values, _, tokens = packed
    assert tokens.values.shape == tokens.mask.shape == (BATCH, layout.num_tokens, layout.width)
    assert tokens.inputs.shape == (BATCH, layout.num_tokens, layout.num_inputs)
    again = _unpack(layout, tokens.values)
    assert set(again) == set(values)
    for name, value in values.items():
        np.testing.assert_array_equal(again[name], value)


@pytest.mark.parametrize("lead", [(), (BATCH, 3)], ids=["alone", "two batch axes"])
def test_leading_axes_are_free(lead):
    layout = make_layout(structure_of("long events"))
    values, _ = draw(layout, lead)
    tokens = _pack(layout, values)
    assert tokens.values.shape == tokens.mask.shape == (*lead, layout.num_tokens, layout.width)
    again = _unpack(layout, tokens.values)
    for name, value in values.items():
        np.testing.assert_array_equal(again[name], value)


def test_pack_undoes_unpack_on_real_entries():
    layout, _, _, tokens = case("long events")
    sequence = np.random.default_rng(1).normal(size=tokens.values.shape).astype(np.float32)
    repacked = _pack(layout, _unpack(layout, sequence)).values
    np.testing.assert_array_equal(repacked, np.where(tokens.mask, sequence, 0.0))


def test_parameters_alone_unpack_to_latents(packed):
    layout, values, _, tokens = packed
    latents = {variable.name for variable in layout.variables if variable.level != "observation"}
    again = _unpack(layout, tokens.values[:, : layout.num_parameters])
    assert set(again) == latents
    for name in latents:
        np.testing.assert_array_equal(again[name], values[name])


def test_mask_marks_exactly_the_real_entries(packed):
    """Values are never zero here, and padding always is."""
    _, values, _, tokens = packed
    np.testing.assert_array_equal(tokens.mask, tokens.values != 0)
    assert tokens.mask.dtype == bool
    assert np.sum(tokens.mask[0]) == sum(value[0].size for value in values.values())
    assert np.all(np.any(tokens.mask, axis=-1))


def test_each_token_holds_what_its_fields_say(packed):
    """Write variable, position and group into the values, and read them off the sequence."""
    layout = packed[0]
    values = {}
    for variable in layout.variables:
        sites = 1 if variable.level == "global" else layout.num_sites
        group = np.arange(sites) + (variable.level != "global")
        position = np.arange(variable.num_tokens).reshape(variable.rows, variable.tokens_per_row)
        position = np.repeat(position, layout.width, axis=1)[:, : variable.size]
        code = 1.0 + variable.id + 100.0 * position[None] + 10_000.0 * group[:, None, None]
        code = np.broadcast_to(code[None], (BATCH, *code.shape)).astype(np.float32)
        values[variable.name] = code[:, 0] if variable.level == "global" else code
    tokens = _pack(layout, values, {})
    ids, positions, groups = layout.fields()
    expected = (1.0 + ids + 100.0 * positions + 10_000.0 * groups)[:, None]
    np.testing.assert_array_equal(tokens.values, np.where(tokens.mask, expected, 0.0))


def test_inputs_go_to_the_tokens_they_belong_to(packed):
    layout, _, inputs, tokens = packed
    ids = layout.fields()[0]
    for variable in layout.variables:
        own = tokens.inputs[:, ids == variable.id]
        given = inputs[variable.name].reshape(own.shape) if variable.inputs else np.zeros_like(own)
        np.testing.assert_array_equal(own, given)


def test_inputs_may_be_shared_by_a_batch():
    layout, values, inputs, tokens = case("own plane inputs")
    shared = _pack(layout, values, {name: value[1] for name, value in inputs.items()})
    np.testing.assert_array_equal(shared.inputs, np.stack([tokens.inputs[1]] * BATCH))
