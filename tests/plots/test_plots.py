"""Figures hold what they claim: labels, positions and numbers, read back from their artists."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS

import hsbi
from hsbi import plots
from hsbi.diagnostics import ecdf_band, tarp
from hsbi.diagnostics.levels import check_globals
from hsbi.results import named_groups
from tests.diagnostics import conjugate


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def draws(shift=0.0):
    rng = np.random.default_rng(0)
    return {"mu": rng.normal(shift, 1.0, 400), "tau": rng.gamma(2.0, 1.0, 400), "theta": rng.normal(size=(400, 3))}


def as_arviz(values):
    dims = {"mu": ("chain", "draw"), "tau": ("chain", "draw"), "theta": ("chain", "draw", "school")}
    return named_groups(
        {"posterior": {name: (value[None], dims[name]) for name, value in values.items()}},
        coords={"school": ["A", "B", "C"]},
    )


def test_forest_puts_medians_of_both_results_beside_each_other():
    figure = plots.forest({"hsbi": as_arviz(draws()), "NUTS": draws(2.0)}, truths={"mu": 0.5})
    panel = figure.axes[0]
    assert [tick.get_text() for tick in panel.get_yticklabels()] == ["mu", "tau", "theta[A]", "theta[B]", "theta[C]"]
    lines = {line.get_label(): line for line in panel.lines}
    for label, values in (("hsbi", draws()), ("NUTS", draws(2.0))):
        expected = [np.median(values["mu"]), np.median(values["tau"]), *np.median(values["theta"], axis=0)]
        np.testing.assert_allclose(lines[label].get_xdata(), expected)
    assert np.all(lines["hsbi"].get_ydata() < lines["NUTS"].get_ydata())
    np.testing.assert_array_equal(lines["true value"].get_xdata()[:2], [0.5, np.nan])


def test_members_without_names_are_counted_after_their_plate():
    rng = np.random.default_rng(7)
    dims = ("chain", "draw", "school", "theta_dim_0")
    data = named_groups({"posterior": {"theta": (rng.normal(size=(1, 50, 2, 2)), dims)}})
    labels = [tick.get_text() for tick in plots.forest(data).axes[0].get_yticklabels()]
    assert labels == ["theta[school 0, 0]", "theta[school 0, 1]", "theta[school 1, 0]", "theta[school 1, 1]"]


def test_shrinkage_writes_names_of_close_sites_at_different_heights():
    theta = np.random.default_rng(8).normal(size=(1, 50, 4))
    data = named_groups({"posterior": {"theta": (theta, ("chain", "draw", "school"))}})
    panel = plots.shrinkage(data, "theta", raw=np.array([0.0, 5.0, 0.01, 0.02])).axes[0]
    heights = {text.get_text(): text.xyann[1] for text in panel.texts}
    assert set(heights) == {"0", "1", "2", "3"}
    assert len({heights[name] for name in ("0", "2", "3")}) == 3


def test_pairs_show_scalars_with_true_values():
    figure = plots.pairs({"hsbi": draws(), "NUTS": draws(0.3)}, truths={"mu": 0.5, "tau": 2.0})
    visible = [panel for panel in figure.axes if panel.get_visible()]
    assert len(visible) == 3
    assert [panel.get_xlabel() for panel in visible] == ["", "mu", "tau"]
    lower = visible[1]
    assert lower.get_ylabel() == "tau"
    assert {tuple(line.get_xdata()) for line in lower.lines if line.get_linestyle() == "-"} == {(0.5, 0.5), (0, 1)}


def test_contours_hold_the_share_of_draws_that_they_claim():
    rng = np.random.default_rng(1)
    figure = plots.pairs({"a": rng.normal(size=20_000), "b": rng.normal(size=20_000)})
    panel = next(p for p in figure.axes if p.get_xlabel() == "a" and p.get_ylabel() == "b")
    # The disk that holds a share m of a standard normal in two dimensions has radius sqrt(-2 log(1 - m)). Smoothing by
    # two of 40 cells over six standard deviations widens it by a few percent.
    for path, mass in zip(panel.collections[0].get_paths(), (0.9, 0.5), strict=True):
        radius = np.median(np.linalg.norm(path.vertices, axis=1))
        assert radius == pytest.approx(np.sqrt(-2 * np.log(1 - mass)), rel=0.1)


def test_shrinkage_draws_each_site_at_its_own_estimate():
    raw = np.array([-3.0, 0.0, 4.0])
    figure = plots.shrinkage(as_arviz(draws()), "theta", raw=raw, population="mu")
    panel = figure.axes[0]
    points = panel.lines[-1]
    np.testing.assert_array_equal(points.get_xdata(), raw)
    np.testing.assert_allclose(points.get_ydata(), np.median(draws()["theta"], axis=0))
    assert panel.get_xlabel() == "estimate of each school from its own data"
    assert [text.get_text() for text in panel.texts] == ["A", "B", "C"]


def test_predictive_has_a_panel_for_each_site_over_its_inputs():
    rng = np.random.default_rng(2)
    predicted, observed = rng.normal(size=(1, 300, 5, 4)), rng.normal(size=(5, 4))
    data = named_groups(
        {
            "posterior_predictive": {"cases": (predicted, ("chain", "draw", "city", "week"))},
            "observed_data": {"cases": (observed, ("city", "week"))},
        }
    )
    weeks = np.array([0.0, 10.0, 20.0, 50.0])
    figure = plots.predictive(data, "cases", inputs=weeks, input_name="week")
    visible = [panel for panel in figure.axes if panel.get_visible()]
    assert [panel.get_title(loc="left") for panel in visible] == [f"city {n}" for n in range(5)]
    median, points = visible[2].lines
    np.testing.assert_array_equal(median.get_xdata(), weeks)
    np.testing.assert_allclose(median.get_ydata(), np.median(predicted[0, :, 2], axis=0))
    np.testing.assert_array_equal(points.get_ydata(), observed[2])
    with pytest.raises(ValueError, match="no observation 'deaths'; there are"):
        plots.predictive(data, "deaths")
    with pytest.raises(ValueError, match="no posterior predictive draws"):
        plots.predictive(as_arviz(draws()))


def test_training_draws_losses_and_calibration_the_share_below():
    figure = plots.training({"surrogate: flow": np.array([[3.0, 4.0], [2.0, 2.5], [1.0, 2.0]])})
    train, validation = figure.axes[0].lines
    np.testing.assert_array_equal(train.get_ydata(), [3.0, 2.0, 1.0])
    np.testing.assert_array_equal(validation.get_ydata(), [4.0, 2.5, 2.0])
    assert (train.get_color(), train.get_marker()) != (validation.get_color(), validation.get_marker())
    assert train.get_linestyle() != validation.get_linestyle()
    once = plots.training({"surrogate: flow": np.array([[3.0, 4.0]])})
    once.canvas.draw()
    assert [tick for tick in once.axes[0].get_xticks() if tick % 1] == []
    ranks = np.random.default_rng(3).random((200, 2)) ** 2
    figure = plots.calibration(ranks, names=["mu", "tau"])
    line = next(line for line in figure.axes[0].lines if line.get_label() == "tau")
    x, y = line.get_xdata(), line.get_ydata()
    np.testing.assert_allclose(y, np.mean(ranks[:, 1, None] <= x, axis=0) - x)
    with pytest.raises(ValueError, match="no losses to draw"):
        plots.training({})


def test_eight_lines_differ_in_more_than_color():
    names = [f"mu[{number}]" for number in range(8)]
    figure = plots.calibration(np.random.default_rng(3).random((50, 8)), names=names)
    lines = [line for line in figure.axes[0].lines if line.get_label() in names]
    assert len({str(line._dash_pattern) for line in lines}) == 8
    several = {name: {"mu": np.random.default_rng(4).normal(size=(300,)), "tau": np.ones(300)} for name in names}
    for number, draws in enumerate(several.values()):
        draws["tau"] = np.random.default_rng(number).normal(size=300)
    plots.pairs(several)


def test_tarp_draws_the_coverage_of_its_ranks():
    rng = np.random.default_rng(4)
    result = tarp(jax.random.key(0), rng.normal(size=60), rng.normal(size=(60, 20)))
    line = plots.tarp(result).axes[0].lines[-1]
    np.testing.assert_allclose(line.get_ydata()[::2], np.mean(result.ranks[:, None] <= result.levels, axis=0))


def checked(num_sites):
    """Give what figures read of a report on a conjugate model, with 200 data sets."""
    rng = np.random.default_rng(5)
    truths, posterior, y = conjugate.simulate(rng, "exact", 200, 50)
    one = check_globals(jax.random.key(0), truths[:, None], posterior[..., None], y[:, None], columns=["mu"])
    plate = SimpleNamespace(name="clinic")
    return SimpleNamespace(levels={"globals": one}, num_sites=num_sites, structure=SimpleNamespace(site_plate=plate))


def test_contraction_is_drawn_over_the_number_of_sites_if_it_varies():
    sizes = np.arange(200) % 10 + 3
    report = checked(sizes)
    values = report.levels["globals"].contraction[:, 0, 0]
    panel = plots.contraction(report).axes[0]
    assert panel.get_xlabel() == "size of plate 'clinic'"
    points, medians = panel.lines[1:]
    np.testing.assert_array_equal(points.get_xdata(), sizes)
    np.testing.assert_array_equal(points.get_ydata(), values)
    assert medians.get_label() == "mu"
    # Groups are in the order of their sizes, and the first holds the smallest data sets.
    assert np.all(np.diff(medians.get_xdata()) > 0)
    first = sizes < np.unique(np.quantile(sizes, np.linspace(0, 1, 7)).round())[1]
    assert medians.get_ydata()[0] == np.median(values[first])


def test_contraction_and_recovery_of_each_quantity():
    report = checked(np.full(200, 5))
    level = report.levels["globals"]
    panel = plots.contraction(report).axes[0]
    assert [tick.get_text() for tick in panel.get_xticklabels()] == ["mu"]
    assert panel.lines[-1].get_ydata()[0] == np.median(level.contraction)
    panel = plots.recovery(report).axes[0]
    np.testing.assert_array_equal(panel.lines[0].get_xdata(), level.truths[:, 0, 0])
    np.testing.assert_array_equal(panel.lines[0].get_ydata(), level.mean[:, 0, 0])
    assert panel.get_title(loc="left") == f"mu, rank correlation {level.recovery[0]:.2f}"


def test_calibration_has_the_band_of_as_many_ranks():
    ranks = np.random.default_rng(6).random((80, 1))
    panel = plots.calibration(ranks).axes[0]
    points, low, high = ecdf_band(80)
    band = panel.collections[0].get_paths()[0].vertices
    for edge in (low, high):
        expected = np.stack([points, edge - points], axis=1)
        assert all(np.any(np.all(np.isclose(band, row), axis=1)) for row in expected)


def test_predictive_is_drawn_over_the_inputs_of_the_estimator():
    def model(times, y=None):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("city", times.shape[0]):
            rate = numpyro.sample("rate", dist.Normal(mu, 1.0))
            mean = rate[:, None] * times
            numpyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=y, infer={"inputs": times})

    times = jnp.array([[0.0, 3.0, 1.0], [5.0, 7.0, 20.0]])
    y = jnp.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    lf = hsbi.LF(model, num_simulations=10, progress=False)
    lf._drawn = (lf._bind((times,), {"y": y}), {}, jax.random.key(0))
    groups = {
        "posterior_predictive": {"y": (np.zeros((1, 20, 2, 3)), ("chain", "draw", "city", "y_dim_0"))},
        "observed_data": {"y": (np.asarray(y), ("city", "y_dim_0"))},
    }
    lf.to_arviz = lambda: named_groups(groups)
    first, second = plots.predictive(lf).axes
    np.testing.assert_array_equal(first.lines[-1].get_xdata(), [0.0, 1.0, 3.0])
    np.testing.assert_array_equal(first.lines[-1].get_ydata(), [1.0, 3.0, 2.0])
    np.testing.assert_array_equal(second.lines[-1].get_xdata(), [5.0, 7.0, 20.0])
    assert second.get_xlabel() == "input"


def test_draws_come_from_nuts_as_well():
    def model(y=None):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    mcmc = MCMC(NUTS(model), num_warmup=20, num_samples=30, progress_bar=False)
    mcmc.run(jax.random.key(0), y=jnp.asarray(0.4))
    figure = plots.forest({"run": mcmc, "data": hsbi.from_mcmc(mcmc)})
    first, second = (line.get_xdata() for line in figure.axes[0].lines)
    np.testing.assert_allclose(first, second, rtol=1e-6)


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match=r"Not every result has \['sigma'\]"):
        plots.forest(draws(), var_names=["sigma"])
    with pytest.raises(ValueError, match=r"prob is 0\.3, expected the mass"):
        plots.forest(draws(), prob=0.3)
    with pytest.raises(ValueError, match=r"'theta' has shape \(2,\), expected \(3,\)"):
        plots.forest(draws(), truths={"theta": np.zeros(2)})
    with pytest.raises(ValueError, match="9 scalars to pair, expected 8 at most"):
        plots.pairs({"theta": np.zeros((10, 9))})
    with pytest.raises(ValueError, match=r"raw \(2,\); expected \[draws, sites\] and \[sites\]"):
        plots.shrinkage(draws(), "theta", raw=np.zeros(2))
    with pytest.raises(ValueError, match="no local 'eta'"):
        plots.shrinkage(draws(), "eta", raw=np.zeros(2))
    with pytest.raises(TypeError, match="Cannot read draws from int"):
        plots.forest(3)


def test_public_names_resolve_through_the_package():
    assert dir(hsbi.plots) == sorted(hsbi.plots.__all__)
    for name in hsbi.plots.__all__:
        assert getattr(hsbi.plots, name).__name__ == name
    with pytest.raises(AttributeError, match=r"'hsbi\.plots' has no attribute 'violin'; public names are"):
        hsbi.plots.violin  # noqa: B018
