"""Changes of the joint posterior: what is generated is told by flow time, and configurations survive saving."""

import dataclasses
import types
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hsbi
from hsbi.bench.tasks import TASKS
from hsbi.inference.batch import Observed
from hsbi.inference.codec import Decoder, Encoder
from hsbi.inference.joint import JointPosterior, token_times
from hsbi.inference.saved import _CLASSES
from hsbi.inference.shared import fit_shared, generate_observations
from hsbi.tokens import make_layout, pack
from tests.networks.weights import random_weights

ABLATIONS = [{"grouping": False}, {"attention": False}, {"shared": True}, {"num_ode_steps": 16}]


def test_tokens_that_are_given_have_arrived():
    target = np.array([True, False, True])
    found = token_times(jnp.array([0.2, 0.7]), target, (2, 3))
    np.testing.assert_allclose(found, [[0.2, 1.0, 0.2], [0.7, 1.0, 0.7]])
    np.testing.assert_allclose(token_times(jnp.asarray(0.3), target, (4, 3)), [[0.3, 1.0, 0.3]] * 4)


@pytest.mark.parametrize("change", ABLATIONS, ids=str)
def test_ablations_are_kept_by_files(change):
    config = dataclasses.replace(hsbi.JointConfig(), **change)
    assert config != hsbi.JointConfig()
    encoder = Encoder(_CLASSES)
    assert Decoder(_CLASSES, encoder.arrays).decode(encoder.encode(config)) == config


def test_a_shared_network_without_attention_is_refused():
    with pytest.raises(ValueError, match="shared=True and attention=False"):
        hsbi.JointConfig(shared=True, attention=False)


def test_observations_are_generated_from_latents_that_stay():
    """The velocity moves observation tokens only, and what stands in the place of given tokens does not matter."""
    config = hsbi.JointConfig(width=8, heads=2, num_blocks=1, shared=True)
    layout = make_layout(hsbi.inspect(TASKS["gaussian_mixture"].model, 3, observed=("y",)))
    view: Any = types.SimpleNamespace(shapes=(types.SimpleNamespace(name="y"),))
    posterior = JointPosterior(config=config, layout=layout, coordinates=cast(Any, None), view=view)
    one = dataclasses.replace(layout, num_sites=1)
    rng = np.random.default_rng(0)
    latents = {"mu_g": (5, 1, 1), "sigma_g": (5, 1, 1), "eta": (5, 1, 1, 1), "y": (5, 1, 1, 1)}
    tokens = pack(one, {name: jnp.asarray(rng.normal(size=shape), jnp.float32) for name, shape in latents.items()})
    times = jnp.linspace(0.1, 0.9, 5)
    real = jnp.ones((5, 4), bool)
    weights = random_weights(posterior.field, tokens.values, tokens.inputs, real, times, one.fields(), 4)
    velocity, target = generate_observations(posterior, weights, tokens)
    np.testing.assert_array_equal(target, [False, False, False, True])
    x = jnp.asarray(rng.normal(size=tokens.values.shape), jnp.float32)
    found = velocity(x, times)
    assert np.all(found[:, :3] == 0)
    assert np.all(np.abs(found[:, 3]) > 1e-6)
    np.testing.assert_array_equal(velocity(x.at[:, :3].add(1.0), times), found)
    assert np.all(velocity(x.at[:, 3].add(1.0), times)[:, 3] != found[:, 3])
    changed, _ = generate_observations(posterior, weights, tokens._replace(values=tokens.values.at[:, 2].add(1.0)))
    assert np.all(changed(x, times)[:, 3] != found[:, 3])


def test_what_a_configuration_cannot_do_is_refused():
    layout = make_layout(hsbi.inspect(TASKS["gaussian_mixture"].model, 3, observed=("y",)))
    nothing: Any = None
    flat = hsbi.JointConfig(attention=False)
    posterior = JointPosterior(config=flat, layout=layout, coordinates=nothing, view=nothing)
    with pytest.raises(ValueError, match=r"The data have 2 sites, but without attention .* for 3 sites only"):
        posterior.sample(nothing, Observed({}, nothing, jnp.ones(2, bool)), jax.random.key(0), 5)
    source: Any = types.SimpleNamespace(program=types.SimpleNamespace(route="pick", reason="it was told to."))
    with pytest.raises(ValueError, match="needs a program that can be run for one site alone: it was told to"):
        fit_shared(jax.random.key(0), hsbi.JointConfig(shared=True), source, nothing)


@pytest.mark.slow
def test_a_shared_network_answers_without_surrogates(monkeypatch, brief):
    # Seven data sets of three sites at once, so that the last ones are made in a part of its own.
    monkeypatch.setattr("hsbi.inference.shared._MAX_ROWS", 21)
    fit = brief["posterior_config"].head
    config = hsbi.JointConfig(width=16, heads=2, num_blocks=1, batch_size=8, num_ode_steps=3, fit=fit, shared=True)
    task = TASKS["gaussian_mixture"]
    lf = hsbi.LF(
        task.model, num_simulations=50, num_samples=6, posterior_config=config, observed=("y",), progress=False
    )
    _, y = task.draw(jax.random.key(0), 3)
    lf.run(jax.random.key(1), 3, y=y)
    assert lf.ledger.total == 50
    assert {name: value.shape for name, value in lf.get_samples().items()} == {
        **{"mu_g": (6,), "sigma_g": (6,)},
        "eta": (6, 3),
    }
    assert lf.surrogate == {}
    with pytest.raises(ValueError, match="There is no surrogate to draw observations from"):
        lf.posterior_predictive(jax.random.key(2))
