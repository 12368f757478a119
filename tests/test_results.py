"""The layout of results: hsbi's draws and NUTS's draws agree with each other and with arviz's own names."""

import importlib.metadata
import warnings

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import HMC, MCMC, NUTS, Predictive
from numpyro.infer.reparam import LocScaleReparam

from hsbi.mcmc import from_mcmc
from hsbi.model.trace import inspect
from hsbi.results import pool_chains, summary_table, to_arviz

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import arviz as az

MAJOR = int(importlib.metadata.version("arviz").split(".")[0])
SIGMA = jnp.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
Y = jnp.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
SCHOOLS = list("ABCDEFGH")


def eight_schools(sigma, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("school", sigma.shape[0]):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.deterministic("effect", theta - mu)
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def nested(y=None):
    """Have every kind of axis: event axes with and without a plate, and a plate that leaves a singleton axis."""
    mu = numpyro.sample("mu", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
    with numpyro.plate("city", 4, dim=-2):
        slope = numpyro.sample("slope", dist.Normal(mu, 1.0).to_event(1))
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
        numpyro.deterministic("double", 2.0 * level)
        with numpyro.plate("day", 5, dim=-1):
            numpyro.sample("y", dist.Normal(level + slope.sum(-1), 1.0), obs=y)


def run(kernel, *args, extra_fields=(), **kwargs):
    mcmc = MCMC(
        kernel,
        num_warmup=20,
        num_samples=30,
        num_chains=2,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), *args, extra_fields=extra_fields, **kwargs)
    return mcmc


@pytest.fixture(scope="module")
def schools_mcmc():
    return run(NUTS(eight_schools), SIGMA, y=Y, extra_fields=("num_steps", "potential_energy", "accept_prob"))


@pytest.fixture(scope="module")
def nested_mcmc():
    return run(HMC(nested, num_steps=2, trajectory_length=None), y=jnp.arange(20.0).reshape(4, 5))


def draw_like(structure, names, key, num_chains=1, num_draws=25):
    keys = jax.random.split(key, len(names))
    return {
        name: jax.random.normal(k, (num_chains, num_draws, *structure[name].shape))
        for name, k in zip(names, keys, strict=True)
    }


@pytest.fixture(scope="module")
def schools_draws():
    structure = inspect(eight_schools, SIGMA, y=Y)
    latents = structure.globals + structure.locals + structure.deterministics
    return structure, draw_like(structure, latents, jax.random.key(1))


def groups_of(result):
    return {name.strip("/") for name in (result.groups if MAJOR >= 1 else result.groups())} - {""}


def test_the_container_is_what_the_installed_arviz_uses(schools_draws):
    structure, draws = schools_draws
    result = to_arviz(structure, posterior=draws)
    assert type(result).__name__ == ("DataTree" if MAJOR >= 1 else "InferenceData")
    assert groups_of(result) == {"posterior"}
    assert result["posterior"].attrs["inference_library"] == "hsbi"


def test_hsbi_and_nuts_share_names_dims_and_coords(schools_draws, schools_mcmc):
    structure, draws = schools_draws
    coords = {"school": SCHOOLS}
    ours = to_arviz(structure, posterior=draws, observed_data={"y": Y}, coords=coords)
    theirs = from_mcmc(schools_mcmc, coords=coords)
    for group in ("posterior", "observed_data"):
        a, b = ours[group], theirs[group]
        assert set(a.data_vars) == set(b.data_vars)
        for name in a.data_vars:
            assert a[name].dims == b[name].dims
        assert list(a["school"].values) == list(b["school"].values) == SCHOOLS
    assert list(ours["posterior"].data_vars) == list(draws)
    assert list(theirs["posterior"].data_vars) == ["mu", "tau", "theta", "effect"]
    assert ours["posterior"]["theta"].dims == ("chain", "draw", "school")
    assert ours["posterior"]["mu"].dims == ("chain", "draw")
    np.testing.assert_array_equal(ours["posterior"]["theta"].values, draws["theta"])
    np.testing.assert_array_equal(ours["observed_data"]["y"].values, theirs["observed_data"]["y"].values)
    first = theirs["posterior"]["theta"].sel(school="C")
    np.testing.assert_array_equal(first, schools_mcmc.get_samples(group_by_chain=True)["theta"][..., 2])


def test_nuts_results_equal_those_of_arviz(schools_mcmc):
    ours, theirs = from_mcmc(schools_mcmc), az.from_numpyro(schools_mcmc, log_likelihood=False)
    for group in ("posterior", "observed_data", "sample_stats"):
        a, b = ours[group], theirs[group]
        assert set(a.data_vars) == set(b.data_vars) - {"reached_max_tree_depth"}
        for name in a.data_vars:
            assert a[name].dims == b[name].dims
            np.testing.assert_array_equal(a[name].values, b[name].values)
            for dim in a[name].dims:
                np.testing.assert_array_equal(a[dim].values, b[dim].values)
    assert groups_of(ours) == {"posterior", "sample_stats", "observed_data"}


def test_event_axes_are_named_as_arviz_names_them_and_singletons_are_dropped(nested_mcmc):
    posterior = from_mcmc(nested_mcmc)["posterior"]
    raw = nested_mcmc.get_samples(group_by_chain=True)
    assert raw["slope"].shape == (2, 30, 4, 1, 2)
    assert posterior["mu"].dims == ("chain", "draw", "mu_dim_0")
    assert posterior["slope"].dims == ("chain", "draw", "city", "slope_dim_0" if MAJOR >= 1 else "slope_dim_1")
    assert posterior["level"].dims == posterior["double"].dims == ("chain", "draw", "city")
    np.testing.assert_array_equal(posterior["slope"].values, raw["slope"][:, :, :, 0])
    np.testing.assert_array_equal(posterior["double"].values, 2.0 * posterior["level"].values)


def test_replicates_keep_their_plates(nested_mcmc):
    data = from_mcmc(nested_mcmc, coords={"day": list("MTWRF")})["observed_data"]
    assert data["y"].dims == ("city", "day")
    assert float(data["y"].sel(city=2, day="W")) == 12.0


def test_sampler_stats_have_the_names_of_arviz(schools_mcmc):
    stats = from_mcmc(schools_mcmc)["sample_stats"]
    fields = schools_mcmc.get_extra_fields(group_by_chain=True)
    assert set(stats.data_vars) == {"diverging", "n_steps", "tree_depth", "lp", "acceptance_rate"}
    np.testing.assert_array_equal(stats["lp"].values, -fields["potential_energy"])
    # A tree of depth k has between 2^(k-1) and 2^k - 1 steps.
    steps, depth = stats["n_steps"].values, stats["tree_depth"].values
    assert np.all((2 ** (depth - 1) <= steps) & (steps <= 2**depth - 1))


def test_reparameterized_sites_appear_as_written():
    model = numpyro.handlers.reparam(eight_schools, config={"theta": LocScaleReparam(0.0)})
    mcmc = run(HMC(model, num_steps=2, trajectory_length=None), SIGMA, y=Y)
    assert "theta_decentered" in mcmc.get_samples()
    posterior = from_mcmc(mcmc)["posterior"]
    assert set(posterior.data_vars) == {"mu", "tau", "theta", "effect"}
    assert posterior["theta"].dims == ("chain", "draw", "school")


def test_models_that_hsbi_refuses_still_convert():
    def model(y):
        mu = numpyro.sample("mu", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
        with numpyro.plate("site", 4, dim=-2):
            theta = numpyro.sample("theta", dist.Normal(mu, 1.0).to_event(1))
            numpyro.deterministic("total", theta.sum(-1))
            numpyro.sample("y", dist.Normal(theta.sum(-1), 1.0), obs=y)
        with numpyro.plate("group", 5):
            numpyro.sample("slope", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
        numpyro.factor("penalty", -(mu[0] ** 2))

    data = jnp.arange(4.0)[:, None]
    with pytest.raises(ValueError, match="penalty"):
        inspect(model, data)
    mcmc = run(HMC(model, num_steps=2, trajectory_length=None), data)
    result = from_mcmc(mcmc)
    assert set(result["posterior"].data_vars) == {"mu", "theta", "total", "slope"}
    same = az.from_numpyro(mcmc, log_likelihood=False)["posterior"]["slope"]
    assert result["posterior"]["slope"].dims == same.dims
    np.testing.assert_array_equal(result["posterior"]["slope"].values, same.values)
    assert result["posterior"]["theta"].shape == (2, 30, 4, 3)
    assert result["posterior"]["theta"].dims[:3] == ("chain", "draw", "site")
    assert result["posterior"]["total"].dims == ("chain", "draw", "site")
    np.testing.assert_array_equal(result["observed_data"]["y"].values, np.arange(4.0))


def test_predictive_draws_are_split_over_chains(nested_mcmc):
    data = jnp.arange(20.0).reshape(4, 5)
    predictive = Predictive(nested, nested_mcmc.get_samples())(jax.random.key(2))
    prior = Predictive(nested, num_samples=7)(jax.random.key(3))
    result = from_mcmc(nested_mcmc, posterior_predictive=predictive, prior=prior, constant_data={"grid": data})
    assert set(result["posterior_predictive"].data_vars) == {"y"}
    assert result["posterior_predictive"]["y"].dims == ("chain", "draw", "city", "day")
    np.testing.assert_array_equal(result["posterior_predictive"]["y"][1, 3], predictive["y"][33])
    assert set(result["prior"].data_vars) == {"mu", "slope", "level", "double"}
    assert result["prior_predictive"]["y"].shape == (1, 7, 4, 5)
    assert result["constant_data"]["grid"].dims == ("grid_dim_0", "grid_dim_1")


def test_covariates_run_over_the_plate(schools_draws):
    structure, draws = schools_draws
    stats = {"log_prob": np.zeros((1, 25))}
    result = to_arviz(
        structure, posterior=draws, sample_stats=stats, constant_data={"sigma": SIGMA}, coords={"school": SCHOOLS}
    )
    assert result["constant_data"]["sigma"].dims == ("school",)
    assert float(result["constant_data"]["sigma"].sel(school="H")) == 18.0
    assert result["sample_stats"]["log_prob"].dims == ("chain", "draw")


def test_dims_rename_axes_and_coords_label_them():
    structure = inspect(nested, y=jnp.zeros((4, 5)))
    draws = draw_like(structure, ("mu", "slope"), jax.random.key(4), num_chains=3)
    result = to_arviz(
        structure,
        posterior=draws,
        coords={"coef": ["a", "b"], "city": [10, 20, 30, 40]},
        dims={"mu": ["coef"], "slope": ["city", "coef"]},
    )["posterior"]
    assert result["mu"].dims == ("chain", "draw", "coef")
    assert result["slope"].dims == ("chain", "draw", "city", "coef")
    np.testing.assert_array_equal(result["slope"].sel(city=30, coef="b"), draws["slope"][..., 2, 1])


def test_a_forest_plot_shows_both(schools_draws, schools_mcmc):
    structure, draws = schools_draws
    results = pool_chains({"hsbi": to_arviz(structure, posterior=draws), "NUTS": from_mcmc(schools_mcmc)})
    with warnings.catch_warnings():
        # What plotting libraries warn of is not ours to mend.
        warnings.simplefilter("ignore")
        if MAJOR >= 1:
            plot = az.plot_forest(results, var_names=["mu", "theta"], combined=True, backend="matplotlib")
            points = plot.viz["point_estimate"]["theta"].sel(school=3)
            for name in results:
                expected = float(results[name]["posterior"]["theta"].sel(school=3).mean())
                np.testing.assert_allclose(points.sel(model=name).item().get_offsets()[0, 0], expected, rtol=1e-4)
        else:
            axes = az.plot_forest(list(results.values()), model_names=list(results), var_names=["mu", "theta"])
            assert {text.get_text() for text in axes[0].get_legend().get_texts()} == {"hsbi", "NUTS"}
    plt.close("all")


def test_pooled_results_have_equally_many_draws_of_every_chain(schools_draws, schools_mcmc):
    structure, draws = schools_draws
    results = {
        "hsbi": to_arviz(structure, posterior=draws),
        "NUTS": from_mcmc(schools_mcmc, coords={"school": SCHOOLS}),
    }
    pooled = pool_chains(results)
    np.testing.assert_array_equal(pooled["hsbi"]["posterior"]["theta"].values, draws["theta"])
    theta = pooled["NUTS"]["posterior"]["theta"]
    assert theta.dims == ("chain", "draw", "school")
    assert list(theta["school"].values) == SCHOOLS
    every = schools_mcmc.get_samples()["theta"]
    # 25 of 60 draws, evenly spaced with both ends.
    np.testing.assert_array_equal(theta[0], every[np.round(np.linspace(0, 59, 25)).astype(int)])


def test_arviz_summarizes_the_result_by_label(schools_draws):
    structure, draws = schools_draws
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = az.summary(to_arviz(structure, posterior=draws, coords={"school": SCHOOLS}))
    assert {"mu", "tau", "theta[A]", "effect[H]"} <= set(table.index)


def test_refuses_labels_of_the_wrong_number(schools_draws):
    structure, draws = schools_draws
    with pytest.raises(ValueError, match="coords gives 3 labels for dim 'school', but it has size 8 in 'theta'"):
        to_arviz(structure, posterior=draws, coords={"school": ["A", "B", "C"]})


def test_warns_of_labels_for_no_dim(schools_draws):
    structure, draws = schools_draws
    with pytest.warns(UserWarning, match=r"coords has labels for 'scool', which no variable has.*'school'"):
        to_arviz(structure, posterior=draws, coords={"scool": SCHOOLS})


def test_refuses_arrays_that_do_not_fit(schools_draws):
    structure, draws = schools_draws
    with pytest.raises(ValueError, match=r"site 'theta' has shape \(1, 25, 7\), expected \(chain, draw, 8\)"):
        to_arviz(structure, posterior=draws | {"theta": draws["theta"][..., :7]})
    with pytest.raises(ValueError, match=r"site 'mu' has shape \(25,\), expected \(chain, draw\)"):
        to_arviz(structure, posterior=draws | {"mu": draws["mu"][0]})
    with pytest.raises(ValueError, match="differ in their numbers of chains and draws"):
        to_arviz(structure, posterior=draws | {"mu": draws["mu"][:, :9]})
    with pytest.raises(KeyError, match="No site 'nu' in the model"):
        to_arviz(structure, posterior={"nu": draws["mu"]})


def test_refuses_dims_that_do_not_fit(schools_draws):
    structure, draws = schools_draws
    with pytest.raises(ValueError, match="dims names 2 axes of 'theta'"):
        to_arviz(structure, posterior=draws, dims={"theta": ["school", "pupil"]})
    with pytest.raises(ValueError, match="Dim 'school' has size 2 in 'extra' but 8 in another variable"):
        to_arviz(
            structure,
            posterior=draws,
            constant_data={"sigma": SIGMA, "extra": np.zeros(2)},
            dims={"extra": ["school"]},
        )


def test_refuses_samplers_without_draws_or_model():
    with pytest.raises(ValueError, match=r"no draws yet. Call mcmc\.run"):
        from_mcmc(MCMC(NUTS(eight_schools), num_warmup=2, num_samples=2, progress_bar=False))
    kernel = NUTS(potential_fn=lambda x: x**2)
    with pytest.raises(ValueError, match="has no model, only a potential function"):
        from_mcmc(MCMC(kernel, num_warmup=2, num_samples=2, progress_bar=False))


def test_summary_rows_are_statistics_of_each_scalar():
    draws = {
        "mu": np.arange(101.0),
        "theta": np.stack([np.arange(101.0), np.full(101, 7.0)], axis=1).reshape(101, 2, 1),
    }
    lines = summary_table(draws, prob=0.8).splitlines()
    assert lines[0].split() == ["mean", "std", "median", "10.0%", "90.0%"]
    # 0, ..., 100 has variance 100 * 102 / 12 = 850 times 101/100 with the unbiased divisor.
    assert lines[1].split() == ["mu", "50.00", f"{np.sqrt(858.5):.2f}", "50.00", "10.00", "90.00"]
    assert lines[2].split()[0] == "theta[0,0]"
    assert lines[3].split() == ["theta[1,0]", "7.00", "0.00", "7.00", "7.00", "7.00"]
    assert len({len(line) for line in lines}) == 1


def test_summary_refuses_a_mass_outside_zero_and_one():
    with pytest.raises(ValueError, match=r"prob is 90, expected the mass of an interval"):
        summary_table({"mu": np.zeros(3)}, prob=90)
