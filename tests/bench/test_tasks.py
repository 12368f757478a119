"""The references against closed forms, brute force and NUTS, and their calibration."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer import MCMC, NUTS, init_to_value
from scipy import integrate, stats

import hsbi
from hsbi.bench import gaussian_linear
from hsbi.bench.tasks import TASKS, quadrature, sir, slcp, two_moons
from hsbi.bench.tasks.__main__ import calibrate
from hsbi.bench.tasks.task import stack

NAMES = list(TASKS)
# One false alarm in a thousand per p-value.
LEAST_P = 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_program_has_the_levels_that_the_task_names(name):
    task = TASKS[name]
    structure = hsbi.inspect(task.model, 3, observed=("y",))
    assert structure.globals == task.global_names
    assert structure.locals == task.local_names
    truth, y = task.draw(jax.random.key(0), 3)
    draws = task.reference(jax.random.key(1), y, 7)
    assert {key: value.shape for key, value in draws.items()} == {k: (7, *v.shape) for k, v in truth.items()}


@pytest.mark.parametrize("name", NAMES)
def test_reference_follows_the_order_of_sites_and_the_key(name):
    task = TASKS[name]
    _, y = task.draw(jax.random.key(2), 3)
    one, same, other = (task.reference(jax.random.key(seed), y, 5) for seed in (0, 0, 1))
    for key in one:
        np.testing.assert_array_equal(one[key], same[key])
        assert np.all(one[key] != other[key])


@pytest.mark.parametrize("name", NAMES)
def test_data_of_another_shape_are_refused(name):
    with pytest.raises(ValueError, match=rf"Data of task '{name}' have shape \(3, 99\), expected \(sites"):
        TASKS[name].reference(jax.random.key(0), np.zeros((3, 99)), 5)


@pytest.mark.parametrize("name", ["gaussian_linear", "gaussian_linear_uniform", "gaussian_mixture"])
def test_references_are_calibrated(name):
    p_values = calibrate(jax.random.key(3), TASKS[name], num_datasets=60, num_sites=4, num_draws=40)
    assert min(p_values.values()) > LEAST_P, p_values


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", ["sir", "slcp", "two_moons"])
def test_costly_references_are_calibrated(name):
    p_values = calibrate(jax.random.key(3), TASKS[name], num_datasets=40, num_sites=4, num_draws=40)
    assert min(p_values.values()) > LEAST_P, p_values


def test_calibration_notices_a_wrong_reference():
    task = TASKS["gaussian_linear"]

    def narrow(key, y, num_draws):
        draws = task.reference(key, y, num_draws)
        return {name: value.mean(0) + 0.6 * (value - value.mean(0)) for name, value in draws.items()}

    wrong = type(task)(**{**vars(task), "reference": narrow})
    p_values = calibrate(jax.random.key(3), wrong, num_datasets=60, num_sites=4, num_draws=40)
    assert max(p_values["locals"], p_values["log joint"]) < LEAST_P


def test_gaussian_linear_has_the_moments_of_the_closed_form():
    _, y = TASKS["gaussian_linear"].draw(jax.random.key(4), 6)
    errors = gaussian_linear.compare(TASKS["gaussian_linear"].reference(jax.random.key(5), y, 4000), y)
    # Monte-Carlo errors of 4,000 draws: 0.016 for means, 0.011 for log sds; four standard errors for the global.
    assert errors.global_mean < 0.064
    assert errors.global_sd < 0.06
    assert errors.local_mean < 0.03
    assert errors.local_sd < 0.03


def agree(draws, reference, names, sd_bounds=(0.85, 1.18)):
    """Compare marginals: means within 0.15 sd, which is three standard errors of 500 effective draws each."""
    got, exact = stack(draws, names), stack(reference, names)
    error = np.abs(got.mean(0) - exact.mean(0)) / exact.std(0)
    ratio = got.std(0) / exact.std(0)
    assert np.all(error < 0.15), error
    assert np.all((ratio > sd_bounds[0]) & (ratio < sd_bounds[1])), ratio


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", ["gaussian_linear_uniform", "gaussian_mixture", "sir", "slcp"])
def test_references_agree_with_nuts_on_the_program(name):
    task = TASKS[name]
    truth, y = task.draw(jax.random.key(7), 3)
    kernel = NUTS(task.model, init_strategy=init_to_value(values=truth), target_accept_prob=0.95)
    mcmc = MCMC(kernel, num_warmup=500, num_samples=3_000, progress_bar=False)
    mcmc.run(jax.random.key(8), 3, y=jnp.asarray(y))
    reference = task.reference(jax.random.key(9), y, 4_000)
    samples = dict(mcmc.get_samples())
    for key in {"sigma_1", "sigma_2"} & set(samples):
        # One chain stays in the mode of its signs.
        samples[key], reference[key] = np.abs(samples[key]), np.abs(reference[key])
    agree(samples, reference, (*task.global_names, *task.local_names))


def test_two_moons_agrees_with_importance_sampling():
    rng = np.random.default_rng(0)
    _, y = TASKS["two_moons"].draw(jax.random.key(10), 2)
    count, num_noises = 8_000, 200
    mu, sigma = rng.uniform(-1, 1, (count, 2)), rng.uniform(0.1, 3.0, (count, 2))
    weights, means = np.ones(count), []
    for site in y:
        angle, radius = rng.uniform(-np.pi / 2, np.pi / 2, num_noises), rng.normal(0.1, 0.01, num_noises)
        shift = site - np.stack([radius * np.cos(angle) + 0.25, radius * np.sin(angle)], axis=1)
        shift = shift[shift[:, 0] < 0]
        eta = np.concatenate(
            [np.stack([s * -shift[:, 0] - shift[:, 1], s * -shift[:, 0] + shift[:, 1]], 1) for s in (1, -1)]
        )
        eta = eta[np.all(np.abs(eta / np.sqrt(2)) <= 1, axis=1)] / np.sqrt(2)
        mass = sigma * (stats.norm.cdf((1 - mu) / sigma) - stats.norm.cdf((-1 - mu) / sigma))
        density = np.exp(-0.5 * ((eta - mu[:, None]) / sigma[:, None]) ** 2).prod(-1) / mass.prod(-1)[:, None]
        weights = weights * density.sum(1)
        means.append((density @ eta) / density.sum(1, keepdims=True))
    weights /= weights.sum()
    reference = TASKS["two_moons"].reference(jax.random.key(11), y, 4_000)
    for exact, values in (
        (reference["mu_g"], mu),
        (reference["sigma_g"], sigma),
        (reference["eta"], np.stack(means, 1)),
    ):
        expected = np.tensordot(weights, values, 1)
        # Four standard errors of 4,000 draws and as much for the importance sampler.
        assert np.all(np.abs(exact.mean(0) - expected) < 0.1 * exact.std(0))


def test_crescent_density_is_normalized_and_fits_the_simulator():
    eta = jnp.array([0.3, -0.6])
    axis = np.linspace(-1.0, 1.0, 401)
    grid = jnp.asarray(np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2))
    density = np.exp(np.asarray(jax.vmap(two_moons.log_crescent, (0, None))(grid, eta), float))
    assert density.sum() * 0.005**2 == pytest.approx(1.0, abs=0.01)
    keys = jax.random.split(jax.random.key(12), 2_000)
    points = jax.vmap(two_moons.crescent, (0, None))(keys, eta)
    mean = np.sum(density[:, None] * np.asarray(grid), axis=0) / density.sum()
    np.testing.assert_allclose(points.mean(0), mean, atol=4 * 0.07 / np.sqrt(2_000) + 1e-3)


@pytest.mark.parametrize(("beta", "gamma"), [(0.4, 0.125), (1.6, 0.1), (0.13, 0.12)])
def test_epidemic_solves_its_equations(beta, gamma):
    def slope(_, state):
        susceptible, infected = state
        return [-beta * susceptible * infected / 1e6, beta * susceptible * infected / 1e6 - gamma * infected]

    days = 17 * np.arange(10)
    exact = integrate.solve_ivp(slope, (0, 153), [1e6 - 1, 1.0], t_eval=days, rtol=1e-10, atol=1e-8).y[1] / 1e6
    np.testing.assert_allclose(np.exp(sir.log_infected(beta, gamma)), exact, rtol=0.01)


def test_box_mass_is_that_of_the_bivariate_normal():
    rng = np.random.default_rng(1)
    low = rng.normal(size=(2, 60)) - 1
    high = low + rng.exponential(2.0, size=(2, 60))
    r = np.tanh(rng.uniform(-3, 3, 60))
    exact = [
        stats.multivariate_normal([0, 0], [[1, c], [c, 1]]).cdf(high[:, i], lower_limit=low[:, i])
        for i, c in enumerate(r)
    ]
    np.testing.assert_allclose(slcp.box_mass(low, high, r), exact, atol=1e-6)


@pytest.mark.parametrize(("location", "scale"), [(0.3, 0.5), (-4.0, 0.7), (30.0, 2.0), (0.0, 50.0)])
def test_truncated_draws_have_the_truncated_distribution(location, scale):
    rng = np.random.default_rng(2)
    draws = quadrature.sample_truncated(rng, np.full(4_000, location), np.full(4_000, scale), -1.0, 2.0)
    exact = stats.truncnorm((-1 - location) / scale, (2 - location) / scale, location, scale)
    assert stats.kstest(draws, exact.cdf).pvalue > LEAST_P


def test_zoomed_grid_draws_a_narrow_density_exactly():
    def log_density(x, y):
        return -0.5 * ((x - 3.21) / 1e-3) ** 2 - 0.5 * ((y - 0.5 * (x - 3.21) / 1e-3) / 0.2) ** 2

    axes, values = quadrature.zoom(quadrature.on_points(log_density), [-10.0, -10.0], [10.0, 10.0], coarse=40, final=30)
    draws = quadrature.sample_density(np.random.default_rng(3), axes, values, log_density, 4_000)
    z = (draws[:, 0] - 3.21) / 1e-3
    # A thousandth of the mass may be cut, which the tests cannot see in 4,000 draws.
    assert stats.kstest(z, "norm").pvalue > LEAST_P
    assert stats.kstest((draws[:, 1] - 0.5 * z) / 0.2, "norm").pvalue > LEAST_P
