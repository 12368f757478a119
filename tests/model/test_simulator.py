"""The simulator as a NumPyro distribution: shapes, handlers, transformations, densities and refusals."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.infer import MCMC, NUTS, Predictive
from numpyro.infer.inspect import get_model_relations

from hsbi.model.host import host_generator
from hsbi.model.simulator import Simulator, density_stub, find_simulator

TIMES = jnp.arange(3.0)
SITES = 5


def line(key, slope, times):
    return slope * times + 0.1 * jax.random.normal(key, times.shape)


def host_line(rng, slope, times):
    return slope * times + 0.1 * rng.normal(size=times.shape)


def make(slope, host=False, fn=None):
    fn = fn or (host_line if host else line)
    return Simulator(fn, slope, TIMES, param_event_dims=(0, 1), event_shape=(3,), host=host)


def model(y=None, host=False, fn=None):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", SITES):
        slope = numpyro.sample("slope", dist.Normal(mean, 1.0))
        return numpyro.sample("y", make(slope, host, fn), obs=y)


BOTH = pytest.mark.parametrize("host", [False, True], ids=["jax", "host"])


def test_shapes_follow_the_parameters():
    sim = Simulator(line, jnp.ones((4, 1)), jnp.ones((2, 3)), param_event_dims=(0, 1))
    assert (sim.batch_shape, sim.event_shape) == ((4, 2), (3,))
    assert sim.sample(jax.random.key(0), (6,)).shape == (6, 4, 2, 3)
    assert Simulator(lambda key: jax.random.normal(key, (2,))).batch_shape == ()
    assert repr(sim) == "Simulator(line, batch_shape=(4, 2), event_shape=(3,))"


def test_event_shape_is_inferred_without_computing():
    seen = []

    def traced(key, rate):
        seen.append(isinstance(rate, jax.core.Tracer))
        return jnp.ones((2, 7)) * rate

    assert Simulator(traced, jnp.ones(4)).event_shape == (2, 7)
    assert seen == [True]


def test_each_member_is_the_function_at_its_own_key_and_parameters():
    slopes = jnp.asarray([0.0, 1.0, -2.0, 3.0, 10.0])
    key = jax.random.key(7)
    draw = make(slopes).sample(key, (2,))
    for position in range(10):
        expected = line(jax.random.fold_in(key, position), slopes[position % 5], TIMES)
        np.testing.assert_allclose(draw[position // 5, position % 5], expected, rtol=1e-6)
    host = make(slopes, host=True).sample(key, (2,))
    for position in range(10):
        rng = host_generator(jax.random.key_data(jax.random.fold_in(key, position)))
        expected = host_line(rng, float(slopes[position % 5]), np.asarray(TIMES, float))
        np.testing.assert_allclose(host[position // 5, position % 5], expected, rtol=1e-6)


@BOTH
def test_old_style_keys_give_the_same_draws(host):
    sim = make(jnp.ones(4), host)
    np.testing.assert_array_equal(sim.sample(jax.random.PRNGKey(3)), sim.sample(jax.random.key(3)))


@BOTH
def test_draws_are_a_function_of_the_key(host):
    sim = make(jnp.ones(4), host)
    once, again, other = (np.asarray(sim.sample(jax.random.key(seed))) for seed in (0, 0, 1))
    np.testing.assert_array_equal(once, again)
    assert not np.isclose(once, other).any()
    assert not np.isclose(once[0, 1:], once[1, 1:]).any()


@BOTH
def test_handlers_see_an_ordinary_site(host):
    seeded = handlers.seed(functools.partial(model, host=host), jax.random.key(0))
    trace = handlers.trace(seeded).get_trace()
    assert trace["y"]["value"].shape == (SITES, 3)
    assert trace["y"]["fn"].batch_shape == (SITES,)
    data = jnp.ones((SITES, 3))
    conditioned = handlers.trace(handlers.condition(seeded, {"y": data})).get_trace()
    np.testing.assert_array_equal(conditioned["y"]["value"], data)
    free = handlers.trace(handlers.uncondition(seeded)).get_trace(y=data)
    np.testing.assert_array_equal(free["y"]["value"], trace["y"]["value"])


@BOTH
def test_predictive_agrees_in_sequence_and_in_parallel(host):
    calls = []

    def counted(rng, slope, times):
        calls.append(times.shape)
        return host_line(rng, slope, times)

    run = functools.partial(model, host=host, fn=counted if host else line)
    draws = [Predictive(run, num_samples=4, parallel=p)(jax.random.key(0)) for p in (False, True)]
    assert draws[0]["y"].shape == (4, SITES, 3)
    np.testing.assert_allclose(draws[0]["y"], draws[1]["y"], rtol=1e-4, atol=1e-5)
    assert len(calls) == (2 * 4 * SITES if host else 0)


@BOTH
def test_jit_and_nested_vmap_agree_with_a_loop(host):
    slopes = jnp.arange(6.0).reshape(2, 3)
    keys = jax.random.split(jax.random.key(0), (2, 3))
    over = jax.vmap(jax.vmap(lambda key, slope: make(slope, host).sample(key, (4,))))
    expected = jnp.stack(
        [jnp.stack([make(slopes[i, j], host).sample(keys[i, j], (4,)) for j in range(3)]) for i in range(2)]
    )
    np.testing.assert_allclose(jax.jit(over)(keys, slopes), expected, rtol=1e-5, atol=1e-6)


@BOTH
def test_vmap_over_what_is_not_shared(host):
    keys = jax.random.split(jax.random.key(0), 3)
    many = jax.vmap(lambda key: make(jnp.arange(4.0), host).sample(key))(keys)
    expected = jnp.stack([make(jnp.arange(4.0), host).sample(key) for key in keys])
    np.testing.assert_allclose(many, expected, rtol=1e-5, atol=1e-6)


@BOTH
def test_is_a_pytree(host):
    sims = jax.vmap(lambda slope: make(slope, host))(jnp.arange(4.0))
    keys = jax.random.split(jax.random.key(0), 4)
    axes = jax.tree.map(lambda leaf: 0, sims)
    draws = jax.jit(jax.vmap(lambda sim, key: sim.sample(key), (axes, 0)))(sims, keys)
    expected = jnp.stack([make(float(i), host).sample(keys[i]) for i in range(4)])
    np.testing.assert_allclose(draws, expected, rtol=1e-5, atol=1e-6)


def test_static_support_is_no_leaf_and_traced_support_is():
    fixed = Simulator(lambda key, a: a, 1.0, support=constraints.interval(0.0, 2.0))
    assert len(jax.tree.leaves(fixed)) == 1
    assert jax.tree.structure(fixed) == jax.tree.structure(jax.tree.map(lambda leaf: leaf, fixed))
    moving = jax.jit(lambda high: Simulator(fixed.fn, 1.0, support=constraints.interval(0.0, high)))(3.0)
    assert float(moving.support.upper_bound) == 3.0


@BOTH
def test_expand_mask_and_to_event(host):
    sim = make(jnp.ones((SITES, 1)), host)
    wide = sim.expand((2, SITES, 4))
    draw = wide.sample(jax.random.key(0), (6,))
    assert draw.shape == (6, 2, SITES, 4, 3)
    assert len(np.unique(np.asarray(draw)[..., 2])) > 0.99 * draw[..., 2].size
    wrapped = wide.mask(jnp.ones((2, SITES, 4), bool)).to_event(1)
    assert (wrapped.batch_shape, wrapped.event_shape) == ((2, SITES), (4, 3))
    found = find_simulator(wrapped)
    assert found is not None
    assert found[0] is sim
    assert found[1] == (2, SITES, 4)
    assert find_simulator(dist.Normal(0.0, 1.0).expand((3,))) is None


@BOTH
def test_one_site_is_what_the_batch_would_give(host):
    slopes = jnp.asarray([0.0, 1.0, -2.0, 3.0, 10.0])
    sim = make(slopes, host)
    key = jax.random.key(2)
    one = sim.simulate_one(jax.random.fold_in(key, 3), sim.site_params(3))
    np.testing.assert_allclose(one, sim.sample(key)[3], rtol=1e-6)
    some = jax.jit(lambda index: sim.take(index, -1).params[0])(jnp.asarray([4, 1]))
    np.testing.assert_array_equal(some, [10.0, 1.0])
    expanded = make(slopes[:, None], host)
    taken = expanded.take(jnp.asarray([4, 1]), -2, (SITES, 7))
    assert taken.batch_shape == (2, 7)
    assert taken.sample(key).shape == (2, 7, 3)
    np.testing.assert_array_equal(expanded.site_params((4, 6), (SITES, 7))[0], 10.0)


@BOTH
def test_discrete_support_gives_integers(host):
    def count(source, rate):
        draw = source.poisson(rate) if host else jax.random.poisson(source, rate)
        return draw * 1.0

    sim = Simulator(count, jnp.full(SITES, 4.0), event_shape=(), host=host, support=constraints.nonnegative_integer)
    assert sim.is_discrete
    draw = sim.sample(jax.random.key(0))
    assert jnp.issubdtype(draw.dtype, jnp.integer)
    assert bool(jnp.all(sim.support(draw)))


@BOTH
def test_counts_that_no_integer_can_hold_leave_the_support(host):
    sim = Simulator(
        lambda _, x: x * 1e20,
        jnp.asarray([0.0, jnp.inf, jnp.nan, 1.0]),
        event_shape=(),
        host=host,
        support=constraints.nonnegative_integer,
    )
    smallest = jnp.iinfo(sim.dtype).min
    np.testing.assert_array_equal(sim.sample(jax.random.key(0)), [0, smallest, smallest, smallest])


def test_continuous_support_gives_floats():
    sim = Simulator(lambda key, x: x.astype(int), jnp.ones(3))
    assert sim.sample(jax.random.key(0)).dtype == jnp.result_type(float)
    assert sim.support == constraints.real
    assert make(jnp.ones(3)).support.event_dim == 1


def test_host_parameters_arrive_in_double_precision_and_writable():
    seen = []

    def look(rng, rate, number, times):
        times += 1.0
        seen.append((type(rate), type(number), times.dtype))
        return times

    Simulator(look, 1.0, 2, TIMES, param_event_dims=(0, 0, 1), event_shape=(3,), host=True).sample(jax.random.key(0))
    assert seen == [(np.float64, np.int64, np.dtype("float64"))]


def gaussian(value, slope, times):
    return dist.Normal(slope * times, 0.1).log_prob(value).sum()


def test_density_is_evaluated_per_member():
    slopes = jnp.arange(5.0)
    sim = Simulator(line, slopes, TIMES, param_event_dims=(0, 1), log_prob=gaussian)
    values = jax.random.normal(jax.random.key(0), (4, 5, 3))
    expected = dist.Normal(slopes[:, None] * TIMES, 0.1).to_event(1).log_prob(values)
    np.testing.assert_allclose(sim.log_prob(values), expected, rtol=1e-5)
    np.testing.assert_allclose(sim.expand((4, 5)).log_prob(values), expected, rtol=1e-5)


def test_nuts_runs_with_a_density():
    # mean ~ N(0, 1), y_s ~ N(mean, 1) for eight sites: the posterior is N(sum(y) / 9, 1 / 9).
    data = jnp.linspace(-1.0, 3.0, 8)

    def conjugate(y):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        with numpyro.plate("site", 8):
            numpyro.sample(
                "y",
                Simulator(
                    lambda key, m: m + jax.random.normal(key), mean, log_prob=lambda v, m: -0.5 * jnp.square(v - m)
                ),
                obs=y,
            )

    mcmc = MCMC(NUTS(conjugate), num_warmup=300, num_samples=2_000, progress_bar=False)
    mcmc.run(jax.random.key(0), data)
    draws = mcmc.get_samples()["mean"]
    sd = 1 / 3
    # 4.3 standard errors, a false-alarm rate of 2e-5, with a fifth of the draws counted as independent.
    error = 4.3 / (2_000 / 5) ** 0.5
    assert abs(float(draws.mean()) - float(data.sum()) / 9) < error * sd
    assert abs(float(draws.std()) / sd - 1.0) < error / 2**0.5


def test_without_density_log_prob_says_what_to_do():
    with pytest.raises(NotImplementedError, match=r"'line' has no density.*Pass log_prob=\.\.\..*hsbi\.LF"):
        make(jnp.ones(4)).log_prob(jnp.ones((4, 3)))


@BOTH
def test_stub_reveals_parents(host):
    run = functools.partial(model, host=host)
    with density_stub():
        relations = get_model_relations(run, (jnp.ones((SITES, 3)),))
        slope = jax.jacfwd(lambda slope: make(slope, host).log_prob(jnp.ones((4, 3))))(jnp.arange(4.0))
    assert relations["sample_sample"]["y"] == ["slope"]
    np.testing.assert_array_equal(slope, jnp.eye(4))
    with pytest.raises(NotImplementedError, match="has no density"):
        make(jnp.ones(4)).log_prob(jnp.ones((4, 3)))


def refuse(error, text):
    return pytest.raises(error, match=text)


def test_refuses_parameters_it_cannot_use():
    with refuse(TypeError, "Parameter 1 of simulator 'line' is a dict, expected an array or a number"):
        Simulator(line, 1.0, {"t": TIMES})
    with refuse(TypeError, "Parameter 0 of simulator 'line' is a ndarray"):
        Simulator(line, np.array(["a"]), TIMES)
    with refuse(ValueError, "has 2 parameters, but param_event_dims has 1 entries"):
        Simulator(line, 1.0, TIMES, param_event_dims=(0,))
    with refuse(ValueError, r"Parameter 0 of simulator 'line' has shape \(\), but param_event_dims says 1"):
        Simulator(line, 1.0, TIMES, param_event_dims=(1, 1))
    with refuse(ValueError, r"batch shapes \(\(4,\), \(3,\)\), which do not broadcast.*param_event_dims"):
        Simulator(line, jnp.ones(4), TIMES)


def test_refuses_wrong_shapes_and_outputs():
    with refuse(ValueError, r"'line' returned shape \(3,\) for one site, expected event_shape \(4,\)"):
        Simulator(line, 1.0, TIMES, param_event_dims=(0, 1), event_shape=(4,)).sample(jax.random.key(0))
    with refuse(TypeError, "returned a dict, expected one array"):
        Simulator(lambda key: {"y": 1.0})
    with refuse(TypeError, r"cannot be traced by JAX.*host=True and event_shape"):
        Simulator(lambda key, x: np.sin(float(x)), 1.0)
    with refuse(
        TypeError, r"'<lambda>' raised AttributeError: .*1 parameters of shapes \(\(\),\).*Generator, pass host=True"
    ):
        Simulator(lambda rng, x: rng.normal(x), 1.0)
    with refuse(TypeError, r"'line' raised TypeError: .*missing 1 required.*JAX calls it as fn\(key, \*params\)"):
        Simulator(line, 1.0)
    with refuse(ValueError, "'host_line' is a host function.*Pass event_shape"):
        Simulator(host_line, 1.0, TIMES, host=True)


def test_refuses_supports_that_do_not_fit():
    with refuse(TypeError, "got support 'positive', expected one of numpyro.distributions.constraints"):
        Simulator(line, 1.0, TIMES, param_event_dims=(0, 1), support="positive")
    with refuse(ValueError, r"returns events of shape \(3,\), but its support CorrMatrix\(\) needs at least 2"):
        Simulator(line, 1.0, TIMES, param_event_dims=(0, 1), support=constraints.corr_matrix)


def test_refuses_bad_calls():
    sim = make(jnp.ones(4))
    with refuse(ValueError, "needs a random key"):
        sim.sample(None)
    with refuse(ValueError, r"got a value of shape \(4, 2\), expected it to end in the event shape \(3,\)"):
        sim.log_prob(jnp.ones((4, 2)))
    with refuse(ValueError, r"takes parameters of shapes \(\(\), \(3,\)\) per site, but got \(\(4,\), \(3,\)\)"):
        sim.simulate_one(jax.random.key(0), (jnp.ones(4), TIMES))
    with refuse(ValueError, r"has batch shape \(4,\), but the index has 2 entries"):
        sim.site_params((0, 1))
    with refuse(ValueError, r"has batch shape \(4,\), which has no axis -2"):
        sim.take(jnp.arange(2), -2)
    unsummed = Simulator(line, 1.0, TIMES, param_event_dims=(0, 1), log_prob=lambda v, *_: v)
    with refuse(ValueError, r"log_prob of simulator 'line' returned shape \(3,\) for one site, expected a scalar"):
        unsummed.log_prob(jnp.ones(3))


@pytest.mark.parametrize(
    ("fn", "support", "text"),
    [
        (lambda rng, x: 1 / 0, constraints.real, r"raised ZeroDivisionError: division by zero \(parameter shapes"),
        (lambda rng, x: np.ones(2), constraints.real, r"returned shape \(2,\) for one site, expected event_shape \(\)"),
        (lambda rng, x: "text", constraints.real, "returned dtype <U4, expected real numbers"),
        (lambda rng, x: 1j, constraints.real, "returned dtype complex128, expected real numbers"),
        (lambda rng, x: 2.5, constraints.nonnegative_integer, "returned 2.5 at a count site, expected whole numbers"),
    ],
    ids=["raises", "shape", "text", "complex", "fraction"],
)
def test_host_failures_reach_the_user(fn, support, text):
    sim = Simulator(fn, 1.0, event_shape=(), host=True, support=support)
    with pytest.raises(Exception, match=text):
        sim.sample(jax.random.key(0)).block_until_ready()
