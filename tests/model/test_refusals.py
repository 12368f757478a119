"""Refusals and warnings: each names the site, what was found, and what to change."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.contrib.control_flow import cond, scan
from numpyro.distributions import constraints, transforms

import hsbi

Y = np.linspace(-1.0, 2.0, 6)


def refused(match, model, *args, observed=(), **kwargs):
    with pytest.raises(ValueError, match=f"(?s){match}"):
        hsbi.inspect(model, *args, observed=observed, **kwargs)


def simple(num_sites=6, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", num_sites):
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
        numpyro.sample("y", dist.Normal(theta, 0.5), obs=y)


def with_locals(mean, num_sites=6):
    """Make a model whose observations have a mean computed from all locals."""

    def model(y=None):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("site", num_sites):
            theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
            numpyro.sample("y", dist.Normal(mean(theta), 0.5), obs=y)

    return model


def with_prior(prior, **kwargs):
    def model(y=None):
        mu = numpyro.sample("mu", prior, **kwargs)
        numpyro.sample("y", dist.Normal(1.0 * mu, 1.0), obs=y)

    return model


def test_factor():
    def model(y=None):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        numpyro.factor("penalty", -(mu**2))
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    refused("Site 'penalty' is a numpyro.factor.*numpyro.sample", model, y=0.3)


def test_param():
    def model(y=None):
        mu = numpyro.param("mu", 0.0) + numpyro.sample("shift", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    refused("Site 'mu' is a numpyro.param.*Give it one with numpyro.sample", model, y=0.3)


def test_discrete_latents():
    refused(r"Site 'mu' is a discrete latent \(Poisson\)", with_prior(dist.Poisson(3.0)), y=0.3)


@pytest.mark.parametrize(
    "prior",
    [
        dist.ImproperUniform(constraints.real, (), ()),
        dist.TransformedDistribution(
            dist.ImproperUniform(constraints.positive, (), ()), transforms.AffineTransform(1.0, 2.0)
        ),
    ],
)
def test_improper_priors(prior):
    refused("Site 'mu' has the improper prior .*Give it a proper prior", with_prior(prior), y=0.3)


def test_delta_latents():
    refused("Site 'mu' is a latent with a Delta.*numpyro.deterministic", with_prior(dist.Delta(1.0)), y=0.3)


def test_substituted_latents():
    model = handlers.substitute(simple, data={"mu": 1.0})
    refused("Site 'mu' is a latent whose value is fixed by handlers.substitute.*handlers.condition", model, y=Y)


def test_scaled_densities_are_listed_together():
    model = handlers.scale(simple, scale=2.0)
    refused("these reasons:.*'mu' has a scaled.*'theta' has a scaled.*'y' has a scaled log density", model, y=Y)


def test_latents_in_a_scan():
    def model(y):
        def step(level, value):
            level = numpyro.sample("level", dist.Normal(level, 1.0))
            numpyro.sample("y", dist.Normal(level, 0.5), obs=value)
            return level, None

        scan(step, jnp.zeros(()), jnp.asarray(y))

    refused("Site 'level' is a latent inside numpyro's scan", model, Y)


def test_simulators_in_a_scan():
    def model():
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))

        def step(last, _):
            value = numpyro.sample("y", hsbi.Simulator(lambda key, m: m + jax.random.normal(key), mu + last))
            return value, None

        scan(step, jnp.zeros(()), None, length=4)

    refused("Simulator site 'y' is inside numpyro's scan.*Move the loop", model)


def test_names_used_twice():
    def model(y=None):
        for _ in range(2):
            numpyro.sample("mu", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y)

    refused("Site 'mu' appears 2 times", model, y=0.3)


def test_nothing_observed():
    refused(r"no observation: none of its sample sites \(mu, theta, y\) was given data", simple)


def test_nothing_latent():
    data = {"mu": 0.0, "theta": Y, "y": Y}
    refused("no latent site, so there is nothing to infer", handlers.condition(simple, data=data))


def test_unknown_names_in_observed():
    refused(
        "observed names 'z', but the model has no sample site 'z'. Its sample sites are mu", simple, observed="z", y=Y
    )


def test_subsampled_plates():
    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("site", 6, subsample_size=2) as index:
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=jnp.asarray(y)[index])

    refused("Plate 'site' is subsampled, 2 of 6 members. Remove subsample_size", model, Y)


def test_one_name_for_plates_of_two_sizes():
    def model(y=None):
        with numpyro.plate("site", 4):
            theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        with numpyro.plate("site", 6):
            numpyro.sample("y", dist.Normal(theta.sum(), 1.0), obs=y)

    refused("Plate 'site' has two sizes, 4 and 6", model, y=Y)


def test_two_plates_at_one_dim():
    def model(y=None):
        site, visit = numpyro.plate("site", 6), numpyro.plate("visit", 6)
        with site:
            theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
            with visit:
                numpyro.sample("y", dist.Normal(theta, 1.0), obs=y)

    refused("Plates 'site' and 'visit' around site 'y' both have dim -1.*Pass dim=", model, y=Y)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (Y[:1], r"Data of site 'y' have shape \(1,\), 1 entry along plate 'site', which has size 6"),
        (0.5, r"Data of site 'y' have shape \(\), no axis along plate 'site', which has size 6"),
        (Y[:5], "Data of site 'y' have 5 entries along plate 'site', which has size 6"),
        (Y[None], r"Data of site 'y' have shape \(1, 6\), but the model draws shape \(6,\)"),
        (list(Y), "Data of site 'y' are a list. Pass a NumPy or JAX array"),
    ],
)
def test_data_of_the_wrong_shape(data, match):
    refused(match, simple, y=data)


def test_data_without_a_plate():
    refused(
        r"Data of site 'y' have shape \(6,\), but the model draws shape \(\)", with_prior(dist.Normal(0.0, 1.0)), y=Y
    )


def test_data_that_do_not_end_in_the_event():
    def model(y=None):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("site", 6):
            numpyro.sample("y", hsbi.Simulator(lambda key, m: m + jax.random.normal(key, (2,)), mu), obs=y)

    refused(
        r"shape \(6, 4\), which does not end in \(2,\), the event shape that its Simulator returns",
        model,
        np.zeros((6, 4)),
    )

    def vectors(y=None):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.MultivariateNormal(mu * jnp.ones(3), jnp.eye(3)), obs=y)

    refused(
        r"\(2,\), which does not end in \(3,\), the event shape that its MultivariateNormal draws", vectors, np.zeros(2)
    )


def test_arguments_of_the_wrong_length():
    def model(sigma, y=None):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("site", 6):
            numpyro.sample("y", dist.Normal(mu, sigma), obs=y)

    refused("Shapes do not fit together in the model, after site 'mu'.*'site' of size 6", model, np.ones(5), Y)


def test_python_branches_on_latents():
    def model(y=None):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(mu if mu > 0 else -mu, 1.0), obs=y)

    refused("number behind a traced value, after site 'mu'.*jnp.where", model, y=0.3)


def test_other_errors_say_where_the_model_was():
    def model():
        numpyro.sample("mu", dist.Normal(0.0, 1.0))
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken") as caught:
        hsbi.inspect(model)
    assert "after site 'mu'" in "".join(caught.value.__notes__)


def test_a_model_that_was_called():
    with pytest.raises(TypeError, match=r"model is a NoneType, expected a NumPyro program.*Pass the function itself"):
        hsbi.inspect(None, Y)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("data", "dtype"), [(Y.astype(object), "object"), (Y.astype(str), "<U"), (1j * Y, "complex")])
def test_data_that_are_no_numbers(data, dtype):
    refused(f"Data of site 'y' have dtype {dtype}.*expected real numbers.*np.asarray", simple, y=data)


def test_latents_in_a_cond():
    def model(y=None):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        shift = cond(
            True,
            lambda _: numpyro.sample("shift", dist.Normal(0.0, 1.0)),
            lambda _: numpyro.sample("shift", dist.Normal(1.0, 1.0)),
            None,
        )
        numpyro.sample("y", dist.Normal(mu + shift, 1.0), obs=y)

    refused("Site 'shift' is a latent inside numpyro's scan or cond", model, y=0.3)


def test_observations_that_share_no_plate():
    def model(y=None, z=None):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("site", 6):
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)
        numpyro.sample("z", dist.Normal(mu, 1.0), obs=z)

    refused("observations share no plate: 'y' in plate 'site', 'z' in no plate", model, Y, 0.3)


def test_a_second_level_of_latents():
    def model(y=None):
        with numpyro.plate("site", 6, dim=-2):
            theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
            with numpyro.plate("visit", 3, dim=-1):
                effect = numpyro.sample("effect", dist.Normal(theta, 1.0))
                numpyro.sample("y", dist.Normal(effect, 1.0), obs=y)

    refused("Latent 'effect' is in plate 'visit' inside the site plate 'site'.*to_event", model, np.zeros((6, 3)))


def test_latents_in_crossed_plates():
    def model(y=None):
        student, item = numpyro.plate("student", 6, dim=-2), numpyro.plate("item", 4, dim=-1)
        with student:
            ability = numpyro.sample("ability", dist.Normal(0.0, 1.0))
        with item:
            difficulty = numpyro.sample("difficulty", dist.Normal(0.0, 1.0))
        with student, item:
            numpyro.sample("y", dist.Normal(ability - difficulty[None], 1.0), obs=y)

    refused("Latent 'difficulty' is in plate 'item', which crosses the site plate 'student'", model, np.zeros((6, 4)))


def test_globals_that_depend_on_locals():
    def model(y=None):
        site = numpyro.plate("site", 6)
        with site:
            theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        total = numpyro.sample("total", dist.Normal(theta.sum(), 1.0))
        with site:
            numpyro.sample("y", dist.Normal(total + theta, 1.0), obs=y)

    refused("Global 'total' depends on local 'theta' of plate 'site'", model, Y)


def test_latents_captured_by_a_simulator():
    def model(y=None):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("site", 6):
            theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
            numpyro.sample("y", hsbi.Simulator(lambda key, t: t + mu + jax.random.normal(key), theta), obs=y)

    refused("function of Simulator site 'y' captures 'mu' instead of taking it as a parameter", model, Y)


# Sites 0 and 1 swapped among six: a dependence between one pair only.
SWAP = np.array([1, 0, 2, 3, 4, 5])


@pytest.mark.parametrize(
    "mean",
    [
        lambda theta: theta - theta.mean(),
        lambda theta: theta[SWAP],
        jnp.cumsum,
        jnp.sort,
        lambda theta: jnp.where(jnp.arange(6) == 5, theta * theta[0], theta),
    ],
    ids=["centered", "swapped", "cumulated", "sorted", "one_pair"],
)
def test_observations_that_use_other_sites_locals(mean):
    refused(
        r"Observation 'y' of site \d depends on local 'theta' of another site, \d \(plate 'site'\)",
        with_locals(mean),
        Y,
    )


def test_the_two_sites_are_named():
    mean = with_locals(lambda theta: jnp.where(jnp.arange(9) == 7, theta * theta[2], theta), 9)
    refused("Observation 'y' of site 7 depends on local 'theta' of another site, 2 ", mean, np.zeros(9))


def test_one_bad_pair_among_many_sites_is_found():
    mean = with_locals(lambda theta: jnp.where(jnp.arange(333) == 77, theta + theta[311], theta), 333)
    refused("Observation 'y' of site 77 depends on local 'theta' of another site, 311 ", mean, np.zeros(333))


def test_locals_that_use_other_sites_locals():
    def model(y=None):
        with numpyro.plate("site", 6):
            theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
            phi = numpyro.sample("phi", dist.Normal(theta.mean(), 1.0))
            numpyro.sample("y", dist.Normal(phi, 1.0), obs=y)

    refused("Local 'phi' of site 0 depends on local 'theta' of another site", model, Y)


def test_a_mixture_is_told_by_its_density():
    def model(y=None):
        with numpyro.plate("site", 6):
            theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
            parts = dist.Normal((theta - theta.mean())[:, None] + jnp.array([-1.0, 1.0]), 1.0)
            numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(jnp.ones(2) / 2), parts), obs=y)

    refused("Observation 'y' of site 0 depends on local 'theta'", model, Y)


def test_masked_members_may_hold_anything():
    """Padding points at another site's local, and the mask says that it does not count."""
    keep = np.arange(6) != 5
    fine = with_locals(lambda theta: jnp.where(keep, theta, theta[0]))
    with pytest.raises(ValueError, match="Observation 'y' of site 5"):
        hsbi.inspect(fine, Y)

    def model(y=None):
        with numpyro.plate("site", 6):
            theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
            with handlers.mask(mask=keep):
                numpyro.sample("y", dist.Normal(jnp.where(keep, theta, theta[0]), 1.0), obs=y)

    assert hsbi.inspect(model, Y).locals == ("theta",)


def test_locals_picked_by_an_index():
    county = np.array([0, 0, 1, 2, 2, 2, 3, 3, 0])

    def model(county, y=None):
        with numpyro.plate("county", 4):
            alpha = numpyro.sample("alpha", dist.Normal(0.0, 1.0))
        with numpyro.plate("house", 9):
            numpyro.sample("y", dist.Normal(alpha[county], 1.0), obs=y)

    refused(
        "'y' picks one member of latent 'alpha' in plate 'county'.*replicate plate.*mask", model, county, np.zeros(9)
    )


def test_observations_outside_the_plate_of_their_locals():
    def model(y=None):
        with numpyro.plate("site", 6):
            theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(theta, 1.0), obs=y)

    refused("'y' picks one member of latent 'theta' in plate 'site'.*Put 'y' inside plate 'site'", model, Y)


def test_coefficients_in_a_plate_of_their_own_are_globals():
    def model(x, y=None):
        with numpyro.plate("feature", 3):
            beta = numpyro.sample("beta", dist.Normal(0.0, 1.0))
        with numpyro.plate("row", 7):
            numpyro.sample("y", dist.Normal(x @ beta, 1.0), obs=y)

    structure = hsbi.inspect(model, np.random.default_rng(0).normal(size=(7, 3)), np.zeros(7))
    assert structure.globals == ("beta",)
    assert structure["beta"].plates == ("feature",)


def expanded(**kwargs):
    def model(y=None):
        theta = numpyro.sample("theta", **kwargs)
        with numpyro.plate("site", 6):
            numpyro.sample("y", dist.Normal(theta, 1.0), obs=y)

    return model


@pytest.mark.parametrize(
    "model",
    [
        expanded(fn=dist.Normal(0.0, 1.0).expand([6])),
        expanded(fn=dist.Normal(0.0, 1.0), sample_shape=(6,)),
        expanded(fn=dist.Normal(jnp.zeros(6), 1.0).to_event(1)),
    ],
    ids=["expand", "sample_shape", "event"],
)
def test_warns_of_locals_without_a_plate(model):
    with pytest.warns(UserWarning, match=r"Latent 'theta' has shape \(6,\).*treated as one global vector"):
        structure = hsbi.inspect(model, Y)
    assert structure.globals == ("theta",)
    assert len(structure.notes) == 1
    assert f"note: {structure.notes[0]}" in str(structure)


def test_warns_of_what_sites_differ_by_unseen():
    offset = np.linspace(0.0, 1.0, 6)
    with pytest.warns(UserWarning, match="Members of plate 'site' differ by something that is no argument"):
        structure = hsbi.inspect(with_locals(lambda theta: theta + offset), Y)
    assert structure.locals == ("theta",)


def test_warns_of_masked_priors():
    def model(y=None):
        with numpyro.plate("site", 6), handlers.mask(mask=np.arange(6) < 4):
            theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(theta, 1.0), obs=y)

    with pytest.warns(UserWarning, match="Latent 'theta' is masked: the mask is ignored"):
        assert hsbi.inspect(model, Y)["y"].missing == 2


def test_warns_of_a_loop_over_sites():
    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        for site in range(6):
            theta = numpyro.sample(f"theta_{site}", dist.Normal(mu, 1.0))
            numpyro.sample(f"y_{site}", dist.Normal(theta, 1.0), obs=y[site])

    with pytest.warns(UserWarning, match="Observations 'y_0' to 'y_5', 6 of them, look like a loop.*numpyro.plate"):
        assert len(hsbi.inspect(model, Y).globals) == 7


def test_warns_of_calls_along_an_axis_without_a_plate():
    def model(times):
        with numpyro.plate("site", 6):
            theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
            curve = hsbi.Simulator(lambda key, rate, t: rate * t + jax.random.normal(key, t.shape), theta, times)
            numpyro.sample("y", curve)

    text = (
        r"Simulator site 'y' makes 4 calls per member .*\(6,\), \(4, 6\) and no plate names.*size 4.*param_event_dims"
    )
    with pytest.warns(UserWarning, match=text):
        assert hsbi.inspect(model, np.ones((4, 6)))["y"].event_shape == (4,)


def test_warns_of_covariates_that_are_lists():
    def model(sigma, y=None):
        with numpyro.plate("site", len(sigma)):
            theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(theta, jnp.asarray(sigma)), obs=y)

    with pytest.warns(
        UserWarning, match=r"Members of plate 'site' differ.*Is it 'sigma' \(a list\), which is no array"
    ):
        hsbi.inspect(model, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], Y)


@pytest.mark.parametrize("pooled", [True, False], ids=["prior", "column"])
def test_warns_of_data_that_set_distributions(pooled):
    def model(table):
        mu = numpyro.sample("mu", dist.Normal(table.mean() if pooled else 0.0, 1.0))
        with numpyro.plate("site", 6):
            theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
            numpyro.sample("y", dist.Normal(theta, 1.0 if pooled else table[:, 1]), obs=table[:, 0])

    site = "mu" if pooled else "y"
    table = np.stack([Y, 1.0 + Y**2], axis=1)
    with pytest.warns(
        UserWarning, match=f"Argument 'table' is observed at 'y' and also sets the distribution of '{site}'"
    ):
        hsbi.inspect(model, table)


def test_data_that_later_statements_see_are_no_reason_to_warn():
    def model(y, z):
        with numpyro.plate("site", 6):
            theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
            first = numpyro.sample("y", dist.Normal(theta, 1.0), obs=y)
            numpyro.sample("z", dist.Normal(theta + first, 1.0), obs=z)

    assert hsbi.inspect(model, Y, 2.0 * Y).notes == ()
