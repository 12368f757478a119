import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import transforms
from numpyro.infer.util import potential_energy

from hsbi.model.coordinates import constrain, coordinate_sizes, log_prior, unconstrain
from hsbi.model.draws import draw_latents
from hsbi.model.program import Program, take_sites
from hsbi.model.structure import Plate, Site, Structure
from tests.model.programs import per_site, schools_program


def local_program(make_prior, num_sites=3) -> Program:
    """Bind a model whose only latent is a local with the given prior."""

    def model(y):
        with numpyro.plate("site", len(y)):
            eta = numpyro.sample("eta", make_prior())
            numpyro.sample("y", dist.Normal(jnp.sum(eta.reshape(len(y), -1), axis=-1), 1.0), obs=y)

    sites = (
        per_site("eta", "local", num_sites, tuple(make_prior().event_shape)),
        per_site("y", "observation", num_sites),
    )
    return bind_by_hand(model, sites, y=np.arange(float(num_sites)))


def bind_by_hand(model, sites, **arguments) -> Program:
    num_sites = sites[-1].shape[0]
    structure = Structure(sites=tuple(sites), plates=(Plate(name="site", size=num_sites, dim=-1, role="site"),))
    return Program(model=model, structure=structure, arguments=arguments, route="resize")


def shared(name: str, *shape: int) -> Site:
    return Site(name=name, level="global", shape=shape, event_shape=shape, program_shape=shape)


@pytest.fixture(scope="module")
def schools() -> Program:
    return schools_program()


def test_locals_are_relative_to_their_conditional_prior(schools):
    values = {"mu": jnp.array(3.0), "tau": jnp.array(2.5), "theta": jnp.linspace(-4.0, 9.0, 8)}
    coordinates = unconstrain(schools, values)
    np.testing.assert_allclose(coordinates["theta"][:, 0], (values["theta"] - 3.0) / 2.5, rtol=1e-6)
    np.testing.assert_allclose(coordinates["mu"], [3.0])
    np.testing.assert_allclose(coordinates["tau"], [np.log(2.5)], rtol=1e-6)
    assert coordinate_sizes(schools) == {"mu": 1, "tau": 1, "theta": 1}


def test_log_prior_of_eight_schools_is_its_closed_form(schools):
    coordinates = {"mu": jnp.array([1.5]), "tau": jnp.array([0.7]), "theta": jnp.linspace(-1.0, 2.0, 8)[:, None]}
    expected = (
        dist.Normal(0.0, 5.0).log_prob(1.5)
        + dist.HalfCauchy(5.0).log_prob(jnp.exp(0.7))
        + 0.7
        + dist.Normal(0.0, 1.0).log_prob(coordinates["theta"]).sum()
    )
    np.testing.assert_allclose(log_prior(schools, coordinates), expected, rtol=1e-5)


def test_log_prior_agrees_with_numpyro():
    def prior():
        numpyro.sample("weights", dist.Dirichlet(jnp.array([1.0, 2.0, 3.0])))
        low = numpyro.sample("low", dist.Normal(0.0, 1.0))
        high = numpyro.sample("high", dist.LogNormal(low, 0.5))
        numpyro.sample("between", dist.Uniform(low, low + high))
        numpyro.sample("factor", dist.LKJCholesky(3, 2.0))
        numpyro.sample("rates", dist.Gamma(2.0, 3.0).expand([2]).to_event(1))
        numpyro.sample(
            "cuts",
            dist.TransformedDistribution(dist.Normal(0.0, 1.0).expand([3]).to_event(1), transforms.OrderedTransform()),
        )

    def model(y):
        prior()
        with numpyro.plate("site", 4):
            numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y)

    shapes = {"weights": (3,), "low": (), "high": (), "between": (), "factor": (3, 3), "rates": (2,), "cuts": (3,)}
    sites = [*(shared(name, *shape) for name, shape in shapes.items()), per_site("y", "observation", 4)]
    program = bind_by_hand(model, sites, y=np.zeros(4))
    values = jax.tree.map(lambda draws: draws[0], draw_latents(program, jax.random.key(3), 1))
    coordinates = jax.jit(lambda draw: unconstrain(program, draw))(values)
    assert coordinate_sizes(program) == {name: value.size for name, value in coordinates.items()}
    scalars = {name: value[0] if name in ("low", "high", "between") else value for name, value in coordinates.items()}
    expected = -potential_energy(prior, (), {}, scalars)
    np.testing.assert_allclose(log_prior(program, coordinates), expected, rtol=1e-4)


PRIORS = {
    "normal": lambda: dist.Normal(2.0, 3.0),
    "student": lambda: dist.StudentT(3.0, 1.0, 2.0),
    "log_normal": lambda: dist.LogNormal(1.0, 0.4),
    "half_normal": lambda: dist.HalfNormal(3.0),
    "half_cauchy": lambda: dist.HalfCauchy(5.0),
    "gamma": lambda: dist.Gamma(0.7, 2.0),
    "inverse_gamma": lambda: dist.InverseGamma(3.0, 2.0),
    "exponential": lambda: dist.Exponential(0.2),
    "weibull": lambda: dist.Weibull(2.0, 1.5),
    "beta": lambda: dist.Beta(2.0, 5.0),
    "uniform": lambda: dist.Uniform(-1.0, 4.0),
    "truncated": lambda: dist.TruncatedNormal(1.0, 2.0, low=0.0),
    "logit_normal": lambda: dist.TransformedDistribution(dist.Normal(0.5, 0.8), transforms.SigmoidTransform()),
    "affine": lambda: dist.TransformedDistribution(dist.Normal(0.5, 0.8), transforms.AffineTransform(3.0, -2.0)),
    "no_moments": lambda: dist.Pareto(1.0, 0.5),
}


@pytest.mark.parametrize("name", PRIORS)
def test_density_integrates_to_one_and_coordinates_round_trip(name):
    program = local_program(PRIORS[name], num_sites=2)
    grid = jnp.linspace(-40.0, 40.0, 16001)
    middle = jnp.linspace(-2.0, 2.5, 6)

    def log_density(z):
        # Both sites stand at the same coordinate, so the log density is twice that of one.
        return 0.5 * log_prior(program, {"eta": jnp.full((2, 1), z)})

    def round_trip(z):
        return unconstrain(program, constrain(program, {"eta": jnp.stack([z, -z])[:, None]}))["eta"]

    densities, back = jax.jit(lambda: (jax.vmap(log_density)(grid), jax.vmap(round_trip)(middle)))()
    np.testing.assert_allclose(jnp.sum(jnp.exp(densities)) * (grid[1] - grid[0]), 1.0, atol=2e-3)
    np.testing.assert_allclose(back, jnp.stack([middle, -middle], axis=1)[..., None], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "make_prior",
    [
        lambda: dist.Dirichlet(jnp.array([1.0, 2.0, 4.0, 1.0])),
        lambda: dist.MultivariateNormal(jnp.array([1.0, -2.0]), jnp.array([[2.0, 0.6], [0.6, 0.5]])),
        lambda: dist.LKJCholesky(3),
        lambda: dist.Gamma(2.0, 1.0).expand([2, 4]).to_event(2),
        lambda: dist.LowRankMultivariateNormal(jnp.zeros(3), jnp.ones((3, 1)), jnp.ones(3)),
    ],
)
def test_vector_locals_round_trip(make_prior):
    program = local_program(make_prior)
    size = coordinate_sizes(program)["eta"]
    coordinates = jnp.linspace(-1.5, 1.0, 5 * 3 * size).reshape(5, 3, size)

    @jax.jit
    @jax.vmap
    def round_trip(eta):
        values = constrain(program, {"eta": eta})
        return values["eta"], unconstrain(program, values)["eta"]

    values, back = round_trip(coordinates)
    assert values.shape == (5, *program.structure["eta"].shape)
    np.testing.assert_allclose(back, coordinates, rtol=1e-3, atol=1e-4)


def test_multivariate_normal_locals_are_whitened():
    def model(y):
        center = numpyro.sample("center", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        factor = numpyro.sample("factor", dist.LKJCholesky(2))
        with numpyro.plate("site", len(y)):
            eta = numpyro.sample("eta", dist.MultivariateNormal(center, scale_tril=factor))
            numpyro.sample("y", dist.Normal(eta[:, 0], 1.0), obs=y)

    sites = (
        shared("center", 2),
        shared("factor", 2, 2),
        per_site("eta", "local", 5, (2,)),
        per_site("y", "observation", 5),
    )
    program = bind_by_hand(model, sites, y=np.zeros(5))
    values = {
        "center": jnp.array([0.5, -1.0]),
        "factor": jnp.array([[1.0, 0.0], [0.6, 0.8]]),
        "eta": jnp.linspace(-2.0, 3.0, 10).reshape(5, 2),
    }
    got = jax.jit(lambda draw: unconstrain(program, draw))(values)["eta"]
    expected = np.linalg.solve(values["factor"], (values["eta"] - values["center"]).T).T
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_dependent_supports_follow_their_parents():
    def model(y):
        width = numpyro.sample("width", dist.LogNormal(0.0, 1.0))
        share = numpyro.sample("share", dist.Uniform(0.0, width))
        with numpyro.plate("site", len(y)):
            eta = numpyro.sample("eta", dist.Uniform(-share, share))
            numpyro.sample("y", dist.Normal(eta, 1.0), obs=y)

    sites = (shared("width"), shared("share"), per_site("eta", "local", 4), per_site("y", "observation", 4))
    program = bind_by_hand(model, sites, y=np.zeros(4))
    coordinates = {
        "width": jnp.array([2.0]),
        "share": jnp.array([0.5]),
        "eta": jnp.array([[-3.0], [0.0], [0.1], [9.0]]),
    }
    values = constrain(program, coordinates)
    share = np.exp(2.0) / (1.0 + np.exp(-0.5))
    np.testing.assert_allclose(values["share"], share, rtol=1e-5)
    assert np.all(np.abs(values["eta"]) < share)
    assert values["eta"][1] == 0.0
    back = jax.jit(lambda draw: unconstrain(program, draw))(values)
    np.testing.assert_allclose(back["eta"][:3], coordinates["eta"][:3], rtol=1e-4, atol=1e-5)


def test_coordinates_of_taken_sites_are_those_of_the_whole(schools):
    values = {"mu": jnp.array(1.0), "tau": jnp.array(3.0), "theta": jnp.arange(8.0)}
    whole = unconstrain(schools, values)
    index = jnp.array([6, 1, 3])

    @jax.jit
    def some(index):
        return unconstrain(take_sites(schools, index), {**values, "theta": values["theta"][index]})

    np.testing.assert_allclose(some(index)["theta"], whole["theta"][index], rtol=1e-6)


def test_gradient_of_log_prior_is_that_of_the_closed_form(schools):
    coordinates = {"mu": jnp.array([1.5]), "tau": jnp.array([0.7]), "theta": jnp.linspace(-1.0, 2.0, 8)[:, None]}
    gradient = jax.grad(lambda z: log_prior(schools, z))(coordinates)
    np.testing.assert_allclose(gradient["theta"], -coordinates["theta"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gradient["mu"], [-1.5 / 25.0], rtol=1e-4)


def test_extreme_scales_leave_the_map_invertible(schools):
    values = {"mu": jnp.array(0.0), "tau": jnp.array(1e-42), "theta": jnp.arange(8.0)}
    coordinates = {**unconstrain(schools, values), "theta": jnp.ones((8, 1))}
    assert np.all(np.isfinite(constrain(schools, coordinates)["theta"]))
