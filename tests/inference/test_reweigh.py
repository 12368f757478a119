"""Draws moved to the surrogates' posterior: eight schools with their exact surrogate against the exact posterior."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hsbi.inference.arrays import Latents
from hsbi.inference.batch import Observed, View
from hsbi.inference.features import fit_features
from hsbi.inference.posterior import FactorizedConfig, Posterior, Weights
from hsbi.inference.reweigh import can_reweigh, reweigh
from tests.inference.linear_gaussian import school_coordinates, school_design, school_surrogate
from tests.model.programs import EFFECTS, ERRORS, NUM_SCHOOLS, schools_program

NUM_DRAWS = 4000
# Exact means and standard deviations of mu, tau, log tau and two effects.
EXACT = {"mu": (4.397, 3.318), "log tau": (0.802, 1.171), "first": (6.212, 5.593), "fifth": (3.616, 4.658)}


def observe(known=None):
    surrogate = school_surrogate()
    values = surrogate.transform.center(jnp.asarray(EFFECTS, jnp.float32).reshape(NUM_SCHOOLS, 1, 1, 1))
    design = school_design(ERRORS)
    if known is not None:
        mask = jnp.asarray(known).reshape(values.shape)
        values, design = jnp.where(mask, values, 0.0), design._replace(masks={"y": mask})
    return Observed({"y": values}, design, jnp.ones(NUM_SCHOOLS, bool))


@functools.cache
def untrained():
    """Give a posterior whose networks have learned nothing."""
    surrogate = school_surrogate()
    view = View(
        shapes=(surrogate.shape,),
        covariates=fit_features((), jnp.asarray(ERRORS, jnp.float32)[:, None], None),
        transforms={"y": surrogate.transform},
        inputs={"y": surrogate.features},
    )
    config = FactorizedConfig(width=8)
    posterior = Posterior(config=config, coordinates=school_coordinates(), view=view, surrogates=(surrogate,))
    features = jax.tree.map(lambda array: array[None], view.features(observe()))
    relative = jnp.zeros((1, NUM_SCHOOLS, 2 + 2 + 2))
    weights = {}
    for level, extra in (("global", ()), ("local", (relative,))):
        modules = posterior.level(level)
        head = modules.net.init(jax.random.key(0), features, *extra)
        weights[level] = Weights(head, None)
    return dataclasses.replace(posterior, global_weights=weights["global"], local_weights=weights["local"])


def start(location, scale):
    """Give draws of mu and log tau that are far from the posterior; locals do not matter."""
    globals_ = jnp.asarray(location) + jnp.asarray(scale) * jax.random.normal(jax.random.key(1), (NUM_DRAWS, 2))
    return Latents(globals_, jnp.zeros((NUM_DRAWS, NUM_SCHOOLS, 1)))


def moments(draws):
    mu, log_tau = np.asarray(draws.globals, float).T
    theta = mu[:, None] + np.exp(log_tau)[:, None] * np.asarray(draws.locals, float)[:, :, 0]
    parts = {"mu": mu, "log tau": log_tau, "first": theta[:, 0], "fifth": theta[:, 4]}
    return {name: (value.mean(), value.std()) for name, value in parts.items()}


@pytest.mark.parametrize(
    ("location", "scale"),
    [((0.0, 1.0), (5.0, 1.5)), ((9.0, 2.5), (2.0, 0.7)), ((4.4, 0.8), (9.0, 3.0)), ((60.0, 4.0), (80.0, 6.0))],
    ids=["like the prior", "off and narrow", "wide", "far and wide"],
)
def test_draws_reach_the_exact_posterior_from_anywhere(location, scale):
    draws, efficiency = jax.jit(reweigh)(
        untrained(), schools_program(), observe(), start(location, scale), jax.random.key(2)
    )
    assert efficiency.globals > 0.2
    assert efficiency.locals > 0.5
    for name, (mean, sd) in moments(draws).items():
        # About 1,000 globals are effective, whose mean is known to 0.03 standard deviations and whose sd to 3 %; four
        # of each, and as much again for the tail of log tau, which small populations miss.
        exact_mean, exact_sd = EXACT[name]
        assert abs(mean - exact_mean) < 0.2 * exact_sd, name
        assert abs(np.log(sd / exact_sd)) < 0.2, name


def test_a_missing_site_has_its_conditional_prior():
    known = np.arange(NUM_SCHOOLS) != 2
    draws, _ = jax.jit(reweigh)(
        untrained(), schools_program(), observe(known), start((4.0, 1.0), (4.0, 1.2)), jax.random.key(2)
    )
    own = np.asarray(draws.locals)[:, 2, 0]
    # Standard normal, from 32 candidates for each draw.
    assert abs(own.mean()) < 5 / np.sqrt(NUM_DRAWS)
    assert own.std() == pytest.approx(1.0, abs=0.06)


def test_draws_stay_where_proposals_do_not_meet_the_posterior():
    far = start((4000.0, 1.0), (1e-3, 1e-3))
    draws, efficiency = jax.jit(reweigh)(untrained(), schools_program(), observe(), far, jax.random.key(2))
    assert efficiency.globals < 0.02 or np.allclose(draws.globals.mean(0), far.globals.mean(0), atol=1.0)
    assert np.all(np.isfinite(draws.locals))


def test_flows_and_the_setting_leave_draws_alone():
    posterior = untrained()
    assert can_reweigh(posterior)
    flowed = tuple(dataclasses.replace(surrogate, flow={}) for surrogate in posterior.surrogates)
    assert not can_reweigh(dataclasses.replace(posterior, surrogates=flowed))
    assert not can_reweigh(dataclasses.replace(posterior, surrogates=()))
    config = dataclasses.replace(posterior.config, refine=False)
    assert not can_reweigh(dataclasses.replace(posterior, config=config))
