"""LF from end to end: budgets, invariances, compilation, results and errors, with brief training."""

import contextlib
import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS

import hsbi
from hsbi.inference.arrays import Latents, read_design
from hsbi.inference.batch import at_sites
from hsbi.model.routes import bind
from tests.inference import problems

SIGMA, Y = problems.SCHOOLS_SIGMA, problems.SCHOOLS_Y


@contextlib.contextmanager
def count_compilations():
    """List the stages that XLA compiles; reading a model compiles a probe of its own each time."""
    events = []
    stages = ("_run_epoch", "_validate", "_start", "_initialize", "_solve", "_gains", "_make_task", "_sample")

    def listen(event, duration, **kwargs):
        name = str(kwargs.get("fun_name", ""))
        if event == "/jax/core/compile/backend_compile_duration" and any(stage in name for stage in stages):
            events.append(name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield events
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def noisy(key, beta, eta, x):
    return beta + eta + x + jax.random.normal(key, (3,))


def simulator_model(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", x.shape[0]):
        eta = numpyro.sample("eta", dist.Normal(beta, 1.0))
        numpyro.sample("y", hsbi.Simulator(noisy, beta, eta, x), obs=y)


class CountedSimulator:
    """A Python simulator that knows how often it was called."""

    def __init__(self):
        self.calls = 0

    def __call__(self, rng, beta, eta):
        self.calls += 1
        return beta + eta + rng.normal(size=2)

    def model(self, num_sites, y=None):
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0))
        with numpyro.plate("site", num_sites):
            eta = numpyro.sample("eta", dist.Normal(beta, 1.0))
            numpyro.sample("y", hsbi.Simulator(self, beta, eta, event_shape=(2,), host=True), obs=y)


def test_density_free_simulator_runs_and_spends_exactly_its_budget(brief):
    x, y = jnp.linspace(0.0, 1.0, 4), jnp.ones((4, 3))
    lf = hsbi.LF(simulator_model, num_simulations=203, num_samples=7, **brief)
    lf.run(jax.random.key(0), x, y=y)
    assert lf.ledger.counts == {"simulate": 203}
    assert {name: value.shape for name, value in lf.get_samples().items()} == {"beta": (7,), "eta": (7, 4)}
    assert {name: value.shape for name, value in lf.get_samples(group_by_chain=True).items()}["eta"] == (1, 7, 4)


@pytest.mark.slow
def test_host_simulator_is_called_as_often_as_the_ledger_says(brief):
    simulator = CountedSimulator()
    lf = hsbi.LF(simulator.model, num_simulations=101, num_samples=6, **brief)
    lf.run(jax.random.key(0), 4, y=jnp.ones((4, 2)))
    assert simulator.calls == lf.ledger.total == 101
    lf.to_arviz()
    assert simulator.calls == 101
    lf.to_arviz(simulator=True)
    assert simulator.calls == lf.ledger.total == 101 + 6 * 4
    assert lf.ledger["posterior_predictive"] == 6 * 4


@pytest.mark.slow
def test_direct_spends_whole_data_sets_within_its_budget(brief):
    simulator = CountedSimulator()
    config = {"posterior_config": brief["posterior_config"], "progress": False}
    direct = hsbi.Direct(simulator.model, num_simulations=103, num_samples=5, **config)
    direct.run(jax.random.key(0), 4, y=jnp.ones((4, 2)))
    assert simulator.calls == direct.ledger.total == 100
    assert direct.get_samples()["eta"].shape == (5, 4)
    with pytest.raises(ValueError, match="no surrogate"):
        direct.posterior_predictive(jax.random.key(1))


def test_direct_refuses_a_shared_network():
    with pytest.raises(ValueError, match="Direct has no surrogates"):
        hsbi.Direct(simulator_model, num_simulations=7, posterior_config=hsbi.JointConfig(shared=True))


def test_direct_refuses_a_budget_below_two_data_sets(brief):
    direct = hsbi.Direct(simulator_model, num_simulations=7, progress=False)
    with pytest.raises(ValueError, match="takes 4 simulator calls, and num_simulations is 7"):
        direct.simulate(jax.random.key(0), jnp.zeros(4))


@pytest.mark.slow
def test_same_key_gives_the_same_draws_and_a_second_run_compiles_nothing(brief):
    draws = []
    for number in range(2):
        lf = hsbi.LF(problems.eight_schools, num_simulations=100, num_samples=9, **brief)
        with count_compilations() as compilations:
            lf.run(jax.random.key(3), SIGMA, y=Y)
        draws.append(lf.get_samples())
        assert bool(compilations) == (number == 0)
    assert all(np.array_equal(draws[0][name], draws[1][name]) for name in ("mu", "tau", "theta"))
    with count_compilations() as compilations:
        lf.fit(jax.random.key(4))
        other = lf.sample(jax.random.key(5), SIGMA, y=Y + 1.0, num_samples=9)
    # Only a surrogate that keeps other parts than before may compile anew, and these keep the same.
    assert compilations == []
    assert not np.array_equal(other["mu"], draws[0]["mu"])


def transport(lf, sigma, y, noise):
    program = bind(problems.eight_schools, (sigma,), {"y": y})
    observed = lf.posterior.view.observe({"y": y}, read_design(program))
    return lf.posterior.transport(program, observed, noise), program, observed


def draw_noise(num_draws, num_sites):
    keys = jax.random.split(jax.random.key(5))
    return Latents(jax.random.normal(keys[0], (num_draws, 2)), jax.random.normal(keys[1], (num_draws, num_sites, 1)))


def test_permuting_sites_permutes_the_answer(schools):
    order = jnp.array([3, 1, 7, 0, 6, 2, 5, 4])
    noise = draw_noise(11, 8)
    straight, program, observed = transport(schools, SIGMA, Y, noise)
    permuted = Latents(noise.globals, noise.locals[:, order])
    shuffled, other_program, other = transport(schools, SIGMA[order], Y[order], permuted)
    np.testing.assert_allclose(shuffled.globals, straight.globals, atol=1e-5)
    np.testing.assert_allclose(shuffled.locals, straight.locals[:, order], atol=1e-5)
    # The answer does depend on the data: a permutation is not what an estimator without eyes would pass.
    flipped, _, _ = transport(schools, SIGMA, Y[order], noise)
    assert np.max(np.abs(flipped.locals - straight.locals)) > 1e-3
    density = schools.posterior.log_prob(program, observed, jax.tree.map(lambda a: a[0], straight))
    again = schools.posterior.log_prob(other_program, other, jax.tree.map(lambda a: a[0], shuffled))
    np.testing.assert_allclose(density, again, rtol=1e-4)


def test_padding_changes_nothing(schools):
    noise = draw_noise(11, 8)
    straight, program, observed = transport(schools, SIGMA, Y, noise)
    index = jnp.array([0, 1, 2, 3, 4, 5, 6, 7, 2, 5])
    wider, design = at_sites(program, observed.design, index)
    garbage = jnp.full((2, *observed.values["y"].shape[1:]), 77.0)
    padded = observed._replace(
        values={"y": jnp.concatenate([observed.values["y"], garbage])},
        design=design,
        site_mask=jnp.arange(10) < 8,
    )
    longer = Latents(noise.globals, jnp.concatenate([noise.locals, noise.locals[:, :2]], axis=1))
    drawn = schools.posterior.transport(wider, padded, longer)
    np.testing.assert_allclose(drawn.globals, straight.globals, atol=1e-5)
    np.testing.assert_allclose(drawn.locals[:, :8], straight.locals, atol=1e-5)


def test_log_prob_is_the_density_of_the_draws(schools):
    # Change of variables: the density of a draw is that of its noise over the volume change of the transport.
    noise = draw_noise(1, 8)
    _, program, observed = transport(schools, SIGMA, Y, noise)
    flat, unflatten = jax.flatten_util.ravel_pytree(jax.tree.map(lambda a: a[0], noise))
    config = dataclasses.replace(schools.posterior.config, num_ode_steps=64)
    fine = dataclasses.replace(schools.posterior, config=config)

    def forward(vector):
        one = jax.tree.map(lambda a: a[None], unflatten(vector))
        return jax.flatten_util.ravel_pytree(fine.transport(program, observed, one))[0]

    _, log_volume = np.linalg.slogdet(np.asarray(jax.jacfwd(forward)(flat), float))
    expected = -0.5 * float(flat @ flat) - 0.5 * flat.size * np.log(2 * np.pi) - log_volume
    value = jax.tree.map(lambda a: a[0], fine.transport(program, observed, noise))
    np.testing.assert_allclose(fine.log_prob(program, observed, value, num_steps=64), expected, rtol=2e-3)


def test_site_counts_inside_the_range_are_quiet_and_beyond_it_warn(schools):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert schools.sample(jax.random.key(0), SIGMA[:6], y=Y[:6])["theta"].shape == (50, 6)
    with pytest.warns(UserWarning, match="have 4 sites, but the posterior was trained for 5 to 10"):
        assert schools.sample(jax.random.key(0), SIGMA[:4], y=Y[:4])["theta"].shape == (50, 4)


@pytest.mark.parametrize("value", [1e30, 1e6])
def test_data_far_outside_warn_and_draws_stay_finite(schools, value):
    with pytest.warns(UserWarning, match=r"1 values of 'y' lie outside.*at site 2, simulations went from"):
        draws = schools.sample(jax.random.key(0), SIGMA, y=Y.at[2].set(value))
    assert all(np.all(np.isfinite(draw)) for draw in draws.values())


def test_missing_data_are_refused_with_their_number(schools):
    with pytest.raises(ValueError, match="Missing data: 2 of 8 values of 'y'"):
        schools.sample(jax.random.key(0), SIGMA, y=Y.at[:2].set(jnp.nan))


def test_data_that_are_absent_are_refused_before_simulating(brief):
    lf = hsbi.LF(problems.eight_schools, num_simulations=100, observed=("y",), **brief)
    with pytest.raises(ValueError, match="Observation 'y' has no data"):
        lf.run(jax.random.key(0), SIGMA)
    assert lf.ledger.total == 0


def test_results_before_training_are_refused(brief):
    lf = hsbi.LF(problems.eight_schools, num_simulations=100, **brief)
    with pytest.raises(ValueError, match="no simulations yet"):
        lf.fit(jax.random.key(0))
    with pytest.raises(ValueError, match="no trained posterior yet"):
        lf.sample(jax.random.key(0), SIGMA, y=Y)
    with pytest.raises(ValueError, match="no draws yet"):
        lf.get_samples()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_simulations": 0}, "num_simulations is 0"),
        ({"num_simulations": 10, "num_samples": 0}, "num_samples is 0"),
        ({"num_simulations": 10, "num_sites": (5, 3)}, r"num_sites is \(5, 3\)"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        hsbi.LF(problems.eight_schools, **settings)


def test_results_stand_beside_nuts(schools):
    def with_effect(sigma, y=None):
        problems.eight_schools(sigma, y)

    schools.sample(jax.random.key(0), SIGMA, y=Y)
    labels = {"school": list("ABCDEFGH")}
    ours = schools.to_arviz(coords=labels, prior=True)
    mcmc = MCMC(NUTS(with_effect), num_warmup=20, num_samples=20, progress_bar=False)
    mcmc.run(jax.random.key(1), SIGMA, y=Y)
    theirs = hsbi.from_mcmc(mcmc, coords=labels)
    for name in ("mu", "tau", "theta"):
        assert ours["posterior"][name].dims == theirs["posterior"][name].dims
    assert list(ours["posterior"]["theta"].coords["school"].values) == labels["school"]
    assert ours["posterior_predictive"]["y"].shape == (1, 50, 8)
    assert ours["prior"]["theta"].shape == (1, 50, 8)
    np.testing.assert_array_equal(ours["observed_data"]["y"].values, Y)
    np.testing.assert_array_equal(ours["constant_data"]["sigma"].values, SIGMA)


def test_print_summary_has_a_row_for_every_marginal(schools, capsys):
    schools.sample(jax.random.key(0), SIGMA, y=Y)
    schools.print_summary()
    printed = capsys.readouterr().out
    assert all(row in printed for row in ("mu", "tau", "theta[0]", "theta[7]"))


def repeated(num_sites, num_visits, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", num_sites, dim=-2):
        eta = numpyro.sample("eta", dist.Normal(mu, 1.0))
        numpyro.deterministic("effect", eta - mu)
        with numpyro.plate("visit", num_visits, dim=-1):
            numpyro.sample("y", dist.Normal(eta, 1.0), obs=y)


@pytest.mark.slow
@pytest.mark.long
def test_replicates_deterministics_and_outer_plates(brief):
    lf = hsbi.LF(repeated, num_simulations=60, num_samples=5, **brief)
    lf.run(jax.random.key(0), 4, 3, y=jnp.ones((4, 3)))
    assert lf.surrogate["y"].shape.replicates == 3
    draws = lf.get_samples()
    # As NumPyro gives it: the plate at dim -2 leaves a singleton axis.
    assert draws["eta"].shape == (5, 4, 1)
    assert lf.to_arviz()["posterior"]["eta"].dims == ("chain", "draw", "site")
    np.testing.assert_allclose(draws["effect"], draws["eta"] - draws["mu"][:, None, None], rtol=1e-6)
    with pytest.warns(UserWarning, match="2 to 2 values of 'y' per site, trained for 3 to 3"):
        fewer = lf.sample(jax.random.key(0), 4, 2, y=jnp.ones((4, 2)))
    assert fewer["eta"].shape == (5, 4, 1)


@pytest.mark.slow
@pytest.mark.long
def test_model_without_plate_and_model_without_locals_run(brief):
    def single(y=None):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(mu * jnp.ones(3), 1.0).to_event(1), obs=y)

    def exchangeable(num_sites, y=None):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("site", num_sites):
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    for model, args, y in ((single, (), jnp.ones(3)), (exchangeable, (6,), jnp.ones(6))):
        lf = hsbi.LF(model, num_simulations=60, num_samples=5, **brief)
        lf.run(jax.random.key(0), *args, y=y)
        assert lf.get_samples()["mu"].shape == (5,)


@pytest.mark.slow
@pytest.mark.long
def test_functional_inputs_reach_the_surrogate(brief):
    def curve(key, rate, times):
        return rate * times + 0.1 * jax.random.normal(key, times.shape)

    def model(times, y=None):
        rate = numpyro.sample("rate", dist.Normal(0.0, 1.0))
        with numpyro.plate("site", times.shape[0]):
            eta = numpyro.sample("eta", dist.Normal(rate, 0.1))
            simulator = hsbi.Simulator(curve, eta, times, param_event_dims=(0, 1))
            numpyro.sample("y", simulator, obs=y, infer={"inputs": times})

    times = jnp.linspace(0.0, 1.0, 15).reshape(3, 5)
    lf = hsbi.LF(model, num_simulations=60, num_samples=5, **brief)
    lf.run(jax.random.key(0), times, y=times)
    assert lf.surrogate["y"].shape.points == 5
    assert lf.posterior_predictive(jax.random.key(1))["y"].shape == (5, 3, 5)


@pytest.mark.slow
@pytest.mark.long
def test_joint_posterior_answers_and_refuses_more_sites(brief):
    config = hsbi.JointConfig(
        width=16, heads=2, num_blocks=1, batch_size=8, num_ode_steps=4, fit=brief["posterior_config"].head
    )
    settings = {**brief, "posterior_config": config}
    lf = hsbi.LF(problems.eight_schools, num_simulations=60, num_samples=6, **settings)
    lf.run(jax.random.key(0), SIGMA, y=Y)
    assert lf.get_samples()["theta"].shape == (6, 8)
    with pytest.warns(UserWarning, match="trained for 8"), pytest.raises(ValueError, match="group embeddings for 8"):
        lf.sample(jax.random.key(0), jnp.concatenate([SIGMA, SIGMA]), y=jnp.concatenate([Y, Y]))
