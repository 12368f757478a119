"""The calibration of the epidemic: its tests pass exact draws, and reject others."""

import jax
import numpy as np
import pytest

from hsbi.bench.seirs_calibration import assess, draw_prior, make_references, summarize
from hsbi.bench.tasks import seirs

SETS, SITES, DRAWS = 100, 6, 50


@pytest.fixture(scope="module")
def sets():
    """Draw data sets in which a site tells its amplitude, and all of them the contact rate, up to normal errors."""
    rng = np.random.default_rng(0)
    spread = np.array([0.05, *[0.04] * SITES])
    guesses = rng.normal(size=(SETS, 1 + SITES))
    truths, draws = (guesses[:, None] + spread * rng.normal(size=(SETS, n, 1 + SITES)) for n in (1, DRAWS))
    summaries = np.stack([guesses[:, 1:], np.broadcast_to(guesses[:, :1], (SETS, SITES))], axis=-1)
    return truths[:, 0], draws, make_references(truths[:, 0], summaries)


def test_exact_draws_pass(sets):
    assert min(assess(jax.random.key(0), *sets).values()) > 0.01


def test_the_prior_is_rejected_though_its_ranks_are_uniform(sets):
    truths, draws, references = sets
    prior = np.random.default_rng(1).normal(size=draws.shape)
    found = assess(jax.random.key(0), truths, prior, references)
    assert max(found["TARP, all latents"], found["TARP, beta0"]) < 1e-4
    assert min(found["ranks of beta0"], found["ranks of amplitudes"]) > 0.01


@pytest.mark.parametrize("wrong", ["shift", "width"])
def test_biased_and_narrow_draws_are_rejected(sets, wrong):
    truths, draws, references = sets
    center = draws.mean(1, keepdims=True)
    changed = draws + 0.03 if wrong == "shift" else center + 0.6 * (draws - center)
    found = assess(jax.random.key(0), truths, changed, references)
    assert max(found["TARP, all latents"], found["ranks of amplitudes"]) < 1e-2


def test_draws_of_the_prior_have_its_ranges():
    drawn = draw_prior(jax.random.key(0), (400, 3))
    for column, (low, high) in enumerate([seirs.BETA0_RANGE, *[seirs.AMPLITUDE_RANGE] * 2]):
        np.testing.assert_allclose([drawn[:, column].min(), drawn[:, column].max()], [low, high], atol=0.02)


def test_summaries_see_the_season():
    times = np.tile(np.linspace(0.0, 365.0, 40, endpoint=False), (2, 1))
    waves = np.stack([np.sin(2 * np.pi * times[0] / 365), np.cos(2 * np.pi * times[0] / 365)])
    found = summarize(times, np.expm1(3.0 + waves))
    np.testing.assert_allclose(found[:, 0], 3.0, rtol=1e-6)
    np.testing.assert_allclose(found[:, 3:], 0.5 * np.eye(2), atol=1e-6)
