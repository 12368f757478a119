import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers

from hsbi.model.data import canonical_inputs, functional_inputs, observed_data, site_covariates
from hsbi.model.draws import recompute
from hsbi.model.execution import Visit, call
from hsbi.model.program import take_sites
from hsbi.model.routes import bind
from tests.model.programs import per_site


def curve(times, dose, y=None, keep=None):
    with numpyro.plate("site", times.shape[0]):
        rate = numpyro.sample("rate", dist.LogNormal(0.0, 1.0))
        numpyro.deterministic("half_life", jnp.log(2.0) / rate)
        with handlers.mask(mask=True if keep is None else keep):
            mean = dose["amount"][:, None] * jnp.exp(-rate[:, None] * times)
            numpyro.sample("y", dist.Normal(mean, 0.1).to_event(1), obs=y, infer={"inputs": times})


TIMES = np.arange(12.0).reshape(4, 3)
DOSE = {"amount": np.array([1.0, 2.0, 3.0, 4.0]), "treated": np.array([True, False, True, True])}


@pytest.fixture(scope="module")
def program():
    y = TIMES * 0.1
    y[1, 2] = np.nan
    return bind(curve, (TIMES, DOSE), {"y": y, "keep": np.array([True, True, False, True])})


def test_masks_join_what_is_nan_and_what_is_masked(program):
    data, mask = observed_data(program)
    expected = np.ones((4, 3), bool)
    expected[1, 2] = expected[2] = False
    np.testing.assert_array_equal(mask["y"], expected)
    np.testing.assert_allclose(data["y"], program.arguments["y"], rtol=1e-6)


def test_functional_inputs_are_no_covariates(program):
    inputs = functional_inputs(program)
    np.testing.assert_array_equal(inputs["y"], TIMES[..., None])
    covariates, names = site_covariates(program)
    assert names == ("dose['amount']", "dose['treated']", "keep")
    np.testing.assert_array_equal(covariates[:, :2], np.stack([DOSE["amount"], DOSE["treated"]], axis=1))
    assert covariates.dtype == jnp.result_type(float)


def test_everything_is_gathered_together(program):
    index = jnp.array([3, 0])

    def read(index):
        taken = take_sites(program, index)
        return observed_data(taken), functional_inputs(taken), site_covariates(taken)[0]

    (_, mask), inputs, covariates = jax.jit(read)(index)
    np.testing.assert_array_equal(inputs["y"], TIMES[[3, 0]][..., None])
    np.testing.assert_array_equal(covariates[:, 0], [4.0, 1.0])
    assert mask["y"].shape == (2, 3)


def test_deterministic_sites_are_recomputed(program):
    rate = jnp.array([1.0, 2.0, 0.5, 4.0])
    np.testing.assert_allclose(recompute(program, {"rate": rate})["half_life"], np.log(2.0) / rate, rtol=1e-6)


def test_obs_mask_means_missing():
    def model(y, seen):
        with numpyro.plate("site", len(y)):
            eta = numpyro.sample("eta", dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(eta, 1.0), obs=y, obs_mask=seen)

    seen = np.array([True, False, True])
    data, mask = observed_data(bind(model, (np.arange(3.0), seen), {}))
    np.testing.assert_array_equal(mask["y"], seen)
    np.testing.assert_array_equal(data["y"], np.arange(3.0))


def test_shared_inputs_are_given_to_every_site_with_their_dimensions():
    place = np.arange(6.0).reshape(3, 2)

    def model(place, y=None):
        with numpyro.plate("site", 4):
            eta = numpyro.sample("eta", dist.Normal(0.0, 1.0))
            mean = eta[:, None] + place.sum(axis=-1)
            numpyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=y, infer={"inputs": place})

    inputs = functional_inputs(bind(model, (place,), {"y": np.zeros((4, 3))}))
    np.testing.assert_array_equal(inputs["y"], np.broadcast_to(place, (4, 3, 2)))


def test_keyword_arguments_reach_the_model():
    def model(a, *args, b=1, **kwargs):
        return a, args, b, kwargs

    assert call(model, {"a": 0, "args": (1, 2), "c": 3}) == (0, (1, 2), 1, {"c": 3})
    assert call(model, {"a": 0, "b": 5}) == (0, (), 5, {})


def test_inputs_of_another_shape_are_refused():
    site = per_site("y", "observation", 4, (3,))
    visit = Visit(site, dist.Normal(0.0, 1.0), (4, 3), jax.random.key(0), None, np.zeros((4, 2, 3)))
    with pytest.raises(ValueError, match=r"inputs of 'y' have shape \(4, 2, 3\), which fits neither .* \(4, 3\)"):
        canonical_inputs(visit)
