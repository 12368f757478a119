"""Blocks and pooling ignore what is masked."""

import numpy as np

from hsbi.networks.attention import Block, masked_mean
from tests.networks.weights import quick, random_weights

BATCH, SITES, TOKENS, WIDTH = 2, 3, 5, 8


def test_block_ignores_masked_tokens():
    rng = np.random.default_rng(0)
    tokens = rng.normal(size=(BATCH, SITES, TOKENS, WIDTH)).astype(np.float32)
    mask = np.ones((BATCH, SITES, TOKENS), bool)
    mask[..., 3:] = False
    module = Block(WIDTH, 2)
    weights = random_weights(module, tokens, mask)
    apply = quick(module.apply)
    expected = apply(weights, tokens, mask)
    garbage = np.where(mask[..., None], tokens, 1e3)
    np.testing.assert_allclose(apply(weights, garbage, mask)[..., :3, :], expected[..., :3, :], rtol=1e-5, atol=1e-5)
    # The same garbage is seen where the mask lets it through.
    seen = apply(weights, garbage, np.ones_like(mask))
    assert np.max(np.abs(seen[..., :3, :] - expected[..., :3, :])) > 1e-2
    order = np.array([2, 0, 1, 4, 3])
    permuted = apply(weights, tokens[..., order, :], mask[..., order])
    np.testing.assert_allclose(permuted, expected[..., order, :], rtol=1e-5, atol=1e-5)


def test_masked_mean_by_hand():
    tokens = np.arange(24.0, dtype=np.float32).reshape(2, 4, 3)
    mask = np.array([[True, False, True, False], [False] * 4])
    expected = np.stack([(tokens[0, 0] + tokens[0, 2]) / 2, np.zeros(3)])
    np.testing.assert_allclose(masked_mean(tokens, mask, -2), expected)
