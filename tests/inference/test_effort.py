"""What is spared where data sets are large."""

import dataclasses

import jax
import numpy as np
import pytest

import hsbi
from hsbi.inference.batch import Stored, Synthetic
from hsbi.inference.effort import lighten, shorten, single_out
from hsbi.inference.posterior import FactorizedConfig, Posterior
from tests.inference.linear_gaussian import school_coordinates, school_design, school_surrogate
from tests.model.programs import ERRORS, NUM_SCHOOLS, schools_program
from tests.networks.weights import quick

CONFIG = FactorizedConfig(batch_size=16, batch_tokens=160, local_tokens=100)


def posterior(config=CONFIG, **changes):
    surrogate = dataclasses.replace(school_surrogate(), **changes)
    return Posterior(config=config, coordinates=school_coordinates(), view=None, surrogates=(surrogate,))


def source():
    return Synthetic(
        num_sites=(NUM_SCHOOLS, NUM_SCHOOLS),
        program=schools_program(),
        coordinates=school_coordinates(),
        surrogates=(school_surrogate(),),
        design=school_design(ERRORS),
    )


def test_attention_is_spared_only_where_batches_shrink_and_draws_are_refined():
    assert lighten(posterior(), 10).config.attention is True
    assert lighten(posterior(), 11).config.attention is False
    assert lighten(posterior(flow={"weights": 0.0}), 11).config.attention is True
    assert lighten(posterior(dataclasses.replace(CONFIG, refine=False)), 11).config.attention is True
    for wanted in (True, False):
        config = dataclasses.replace(CONFIG, attention=wanted)
        assert lighten(posterior(config), 11).config == config


def test_steps_fall_with_the_tokens_of_a_batch_but_not_below_a_minimum():
    plan = hsbi.FitConfig(num_steps=3000, epoch_steps=250, patience=None)
    config = lighten(posterior(), 100).config
    # Batches have at least four data sets here, and 640 tokens are what they should have.
    assert config.num_sets(160, "global") == 4
    assert shorten(plan, config, 160) == plan
    half = shorten(plan, config, 320)
    assert (half.num_steps, half.num_steps % half.epoch_steps) == (1500, 0)
    assert shorten(plan, config, 10**6).num_steps == 300
    brief = hsbi.FitConfig(num_steps=20, epoch_steps=10)
    assert shorten(brief, config, 10**6) == brief
    assert shorten(plan, dataclasses.replace(config, attention=True), 10**6) == plan


def test_locals_see_data_sets_of_few_sites_where_observations_are_many():
    # 13 tokens a site; four whole data sets do not fit, 32 of one site are as near as it gets.
    few = single_out(source(), CONFIG, NUM_SCHOOLS, 13 * NUM_SCHOOLS)
    assert few is not None
    assert few.num_sites == (1, 1)
    batch = quick(lambda key: few.draw(key, 200))(jax.random.key(0))
    assert batch.index.shape == (200, 1)
    assert set(np.asarray(batch.index).ravel().tolist()) == set(range(NUM_SCHOOLS))
    np.testing.assert_allclose(batch.observed.design.covariates[..., 0], ERRORS[np.asarray(batch.index)], rtol=1e-6)


@pytest.mark.parametrize("kind", ["small", "stored", "whole"])
def test_locals_see_whole_data_sets_otherwise(kind):
    given, tokens = source(), 13 * NUM_SCHOOLS
    if kind == "small":
        tokens = NUM_SCHOOLS
    elif kind == "stored":
        given = Stored(batch=quick(lambda key: source().draw(key, 3))(jax.random.key(0)))
    else:
        given = dataclasses.replace(given, program=dataclasses.replace(given.program, route="whole"))
    assert single_out(given, CONFIG, NUM_SCHOOLS, tokens) is None
