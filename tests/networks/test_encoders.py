"""Encoders: the order of sites does not matter, and neither does padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hsbi.networks.densities import GlobalNet, LocalNet
from hsbi.networks.encoders import SetEncoder, SiteFeatures, TokenSet, add_moments
from tests.networks.weights import quick, random_weights

WIDTH, HEADS = 8, 2
BATCH, SITES, STATIC, TOKENS, VALUES = 2, 5, 3, 4, 2
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


def features(seed=0, sites=SITES, tokens=TOKENS):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(BATCH, sites, tokens, VALUES)).astype(np.float32)
    return SiteFeatures(
        rng.normal(size=(BATCH, sites, STATIC)).astype(np.float32),
        (TokenSet(values, np.ones((BATCH, sites, tokens), bool)),),
        np.ones((BATCH, sites), bool),
    )


def pad(array, axis, number, fill):
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, number)
    return np.pad(array, widths, constant_values=fill)


def pad_sites(seen, number, fill):
    """Append sites that are not real, full of garbage, some of their tokens claiming to be real."""
    tokens = seen.sets[0]
    return SiteFeatures(
        pad(seen.static, 1, number, fill),
        (TokenSet(pad(tokens.values, 1, number, -fill), pad(tokens.mask, 1, number, True)),),
        pad(seen.site_mask, 1, number, False),
    )


def pad_tokens(seen, number, fill):
    tokens = seen.sets[0]
    padded = TokenSet(pad(tokens.values, 2, number, fill), pad(tokens.mask, 2, number, False))
    return seen._replace(sets=(padded,))


def permute(seen, order):
    return jax.tree.map(lambda array: array[:, order], seen)


@pytest.fixture(scope="module", params=[HEADS, 0], ids=["attention", "averages"])
def set_encoder(request):
    module = SetEncoder(WIDTH, heads=request.param)
    weights = random_weights(module, features())
    return quick(lambda seen: module.apply(weights, seen))


@pytest.fixture(scope="module")
def local_net():
    module = LocalNet(2, WIDTH, heads=HEADS)
    weights = random_weights(module, features(), relative())
    return quick(lambda seen, rest: module.apply(weights, seen, rest))


def relative(sites=SITES):
    return np.random.default_rng(9).normal(size=(BATCH, sites, 3)).astype(np.float32)


def test_permuting_sites_leaves_the_context_unchanged(set_encoder):
    order = np.array([3, 0, 4, 2, 1])
    np.testing.assert_allclose(set_encoder(permute(features(), order)), set_encoder(features()), **TOLERANCE)


def test_other_data_change_the_context(set_encoder):
    seen = features()
    for change in (seen._replace(static=seen.static + 0.1), seen._replace(sets=features(seed=1).sets)):
        assert np.max(np.abs(set_encoder(change) - set_encoder(seen))) > 1e-3


@pytest.mark.parametrize("fill", [7.0, 1e4])
def test_padding_sites_and_tokens_changes_no_context(set_encoder, fill):
    padded = pad_tokens(pad_sites(features(), 3, fill), 2, -fill)
    np.testing.assert_allclose(set_encoder(padded), set_encoder(features()), **TOLERANCE)


def test_data_sets_of_a_batch_do_not_see_each_other(set_encoder):
    mixed = jax.tree.map(lambda ours, other: np.stack([ours[0], other[1]]), features(), features(seed=1))
    np.testing.assert_allclose(set_encoder(mixed)[0], set_encoder(features())[0], **TOLERANCE)
    np.testing.assert_allclose(set_encoder(mixed)[1], set_encoder(features(seed=1))[1], **TOLERANCE)


def test_permuting_sites_permutes_the_locals(local_net):
    order = np.array([3, 0, 4, 2, 1])
    expected = jax.tree.map(lambda array: array[:, order], local_net(features(), relative()))
    found = local_net(permute(features(), order), relative()[:, order])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **TOLERANCE), found, expected)
    assert np.max(np.abs(found[1].loc - np.asarray(expected[1].loc)[:, order])) > 1e-2


def test_padding_changes_no_local(local_net):
    expected = local_net(features(), relative())
    padded = pad_tokens(pad_sites(features(), 2, 1e3), 3, -1e3)
    found = local_net(padded, pad(relative(), 1, 2, 1e3))
    found = jax.tree.map(lambda array: array[:, :SITES], found)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **TOLERANCE), found, expected)


def test_moments_are_those_of_real_tokens():
    seen = features()
    tokens = seen.sets[0]
    mask = np.ones_like(tokens.mask)
    mask[:, 1:, 2:] = False
    found = np.asarray(quick(add_moments)(seen._replace(sets=(TokenSet(tokens.values, mask),))))
    assert found.shape == (BATCH, SITES, STATIC + 2 * VALUES + 1)
    real = tokens.values[:, 2, :2]
    np.testing.assert_allclose(found[:, 2, STATIC : STATIC + VALUES], real.mean(1), **TOLERANCE)
    np.testing.assert_allclose(found[:, 2, STATIC + VALUES : -1], np.log(real.std(1)), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found[:, :, -1], np.log1p(mask.sum(-1)), **TOLERANCE)


def test_correlations_are_predicted_in_few_dimensions_only():
    for dim in (2, 13):
        module = GlobalNet(dim, WIDTH, heads=HEADS)
        shapes = jax.eval_shape(lambda module=module: module.init_with_output(jax.random.key(0), features())[0])
        assert shapes[1].loc.shape == (BATCH, dim)
        assert (shapes[1].lower is None) == (dim == 13)


@pytest.mark.parametrize("heads", [HEADS, 0])
def test_bfloat16_stays_near_float32(heads):
    """Bfloat16 has 8 bits: a few layers may be off by some percent."""
    full, short = (SetEncoder(WIDTH, heads=heads, dtype=dtype) for dtype in ("float32", "bfloat16"))
    weights = random_weights(full, features())
    half = quick(short.apply)(weights, features())
    assert half.dtype == jnp.float32
    assert 0 < np.max(np.abs(half - quick(full.apply)(weights, features()))) < 0.2
