"""hsbi.check from end to end, on an estimator with a closed form: no network is trained."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest

import hsbi
from hsbi.diagnostics.at_observation import compare_observation, site_labels
from hsbi.diagnostics.simulated import fit_summary
from hsbi.diagnostics.verdict import Line
from hsbi.inference.arrays import read_design
from hsbi.inference.lf import make_view
from hsbi.training.fit import FitResult
from tests.diagnostics import exact_posterior
from tests.diagnostics.exact_posterior import NUM_SITES, Exact

BUDGET = {"num_data_sets": 120, "num_draws": 60}


def do_not_train(key: Any, params: Any, *args: Any, **kwargs: Any) -> FitResult:
    return FitResult(params, np.zeros((1, 2)), 0.0, 0.0)


def fit_exactly(self, key, held_out_key, source, states):
    self.posterior = Exact(coordinates=source.coordinates, view=make_view(source.surrogates, source.design))


def make_estimator(num_sites=None):
    """Simulate and solve the linear surrogate, which can be exact here; the posterior is given."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hsbi.inference.surrogate_fit.fit", do_not_train)
        patch.setattr(hsbi.LF, "_fit_posterior", fit_exactly)
        lf = hsbi.LF(exact_posterior.model, num_simulations=3000, num_samples=300, num_sites=num_sites, progress=False)
        lf.run(jax.random.key(0), NUM_SITES, y=jnp.linspace(-1.0, 2.0, NUM_SITES))
    return lf


@pytest.fixture(scope="module")
def lf():
    return make_estimator()


@pytest.fixture(scope="module")
def report(lf):
    return hsbi.check(lf, jax.random.key(1), **BUDGET)


def with_posterior(lf, **changes):
    """Give an estimator that differs in its posterior only, by numbers, so that nothing is compiled again."""
    other = object.__new__(type(lf))
    other.__dict__.update(lf.__dict__)
    changes = {name: jnp.asarray(value) for name, value in changes.items()}
    other.posterior = dataclasses.replace(lf.posterior, **changes)
    return other


def test_exact_posterior_is_trusted_on_every_line(report):
    names = ["globals", "locals", "joint", "surrogate of y", "observed data", "globals at the data"]
    assert [line.name for line in report.lines] == names
    assert report.verdict == "trusted", str(report)
    assert report.num_simulations == 0
    # Contraction of mu is exact: 1 - 1 / (1 + S / 2); a width from 60 draws is off by about 15 %.
    level = report.levels["globals"]
    assert np.median(level.contraction) == pytest.approx(1 - 1 / (1 + NUM_SITES / 2), abs=0.06)
    assert report.levels["locals"].truths.shape == (120, NUM_SITES, 1)


def test_report_prints_few_lines_with_numbers(report):
    text = str(report).splitlines()
    assert len(text) <= 30
    assert text[0].startswith("trusted: 120 data sets, 60 draws each, 0 real simulations")
    assert "mu" in text[1]
    assert report["globals"].verdict == "trusted"
    with pytest.raises(KeyError, match="no line 'global'; lines are 'globals', 'locals'"):
        report["global"]


def test_of_too_many_lines_the_worst_are_printed(report):
    good, bad = report.lines[0], Line(name="locals", verdict="wrong", finding="theta: off", advice="train longer")
    text = str(dataclasses.replace(report, lines=(good,) * 40 + (bad,))).splitlines()
    assert len(text) == 30
    assert text[0].startswith("wrong: 120 data sets")
    assert text[-3:-1] == ["  wrong     locals   theta: off", "                     -> train longer"]
    assert text[-1] == "  ... 14 more, trusted at worst; see report.lines"
    text = str(dataclasses.replace(report, lines=(bad,) * 40)).splitlines()
    assert len(text) == 30
    assert text[-1] == "  ... 26 more, wrong at worst; see report.lines"


@pytest.mark.parametrize(
    ("changes", "wrong", "trusted"),
    [
        ({"use": 0.0}, ("globals", "locals", "globals at the data"), ()),
        ({"shift": 0.7}, ("globals", "globals at the data"), ()),
        ({"scale": 0.6}, ("locals",), ("globals",)),
    ],
)
def test_wrong_posteriors_are_found_at_their_level(lf, report, changes, wrong, trusted):
    start = {"use": 1.0, "shift": 0.0, "scale": 1.0}
    found = hsbi.check(with_posterior(lf, **{**start, **changes}), jax.random.key(2), **BUDGET)
    for name in wrong:
        assert found[name].verdict in ("wrong", "doubtful"), str(found)
        assert "train" in found[name].advice
    for name in (*trusted, "surrogate of y"):
        assert found[name].verdict == "trusted", str(found)


def test_advice_names_the_configuration_that_was_used(lf, monkeypatch):
    wrong = with_posterior(lf, use=0.0, shift=0.0, scale=1.0)
    assert "FactorizedConfig" in hsbi.check(wrong, jax.random.key(2), **BUDGET)["locals"].advice
    monkeypatch.setattr("hsbi.diagnostics.check.JointPosterior", Exact)
    found = hsbi.check(wrong, jax.random.key(2), **BUDGET)
    assert "JointConfig(fit=...)" in found["locals"].advice
    assert "FactorizedConfig" not in str(found)


def test_site_outside_what_was_simulated_is_named(lf):
    other = with_posterior(lf)
    y = np.linspace(-1.0, 2.0, NUM_SITES)
    y[4] = 60.0
    with pytest.warns(UserWarning, match="outside what was simulated"):
        other.sample(jax.random.key(3), NUM_SITES, y=jnp.asarray(y))
    names = ["Ulm", "Bonn", "Jena", "Kiel", "St. Gallen", "Graz"]
    found = hsbi.check(other, jax.random.key(4), coords={"clinic": names}, **BUDGET)
    assert found["observed data"].verdict == "wrong"
    assert "clinic St. Gallen outside what was simulated" in found["observed data"].advice
    assert found.observation.outside == ("clinic St. Gallen",)
    panel = found.plot().axes[6]
    assert (panel.get_xlabel(), panel.get_xticklabels()[0].get_text()) == ("clinic", "St. Gallen")
    plt.close("all")
    with pytest.raises(ValueError, match="coords name 2 members of plate 'clinic', but the data have 6"):
        hsbi.check(other, jax.random.key(4), coords={"clinic": names[:2]}, **BUDGET)


def test_misfit_is_the_squared_distance_from_the_surrogate(lf):
    program = lf._drawn[0]
    observed = lf.posterior.view.observe(lf._read_data(program), read_design(program))
    theta = jnp.array([-1.0, 0.0, 1.0, 2.0, 3.0, 0.0])
    fixed = {"mu": jnp.zeros(300), "theta": jnp.tile(theta, (300, 1))}
    rng = np.random.default_rng(0)
    summary = fit_summary(jax.tree.map(lambda array: jnp.stack([array, array]), observed))
    features = rng.normal(size=(100, NUM_SITES, summary.sites(observed).shape[1]))
    mask = np.ones((100, NUM_SITES), bool)
    found = compare_observation(
        jax.random.key(0), program, lf._surrogates(), observed, fixed, summary, features, mask, site_labels(program)
    )
    expected = (np.linspace(-1.0, 2.0, NUM_SITES) - np.asarray(theta)) ** 2
    # The surrogate is solved from 2,700 simulations: location and scale to about 0.05.
    np.testing.assert_allclose(found.misfit, expected, atol=0.25)
    # P(chi2_1 > 4.84) for the worst site, by the normal tail of a cube root.
    assert found.predictive_p_value[-1] == pytest.approx(0.046, abs=0.03)
    assert found.labels[-1] == "clinic 5"


def test_draws_of_some_sites_are_kept_where_there_are_too_many(lf, report, monkeypatch):
    monkeypatch.setattr("hsbi.diagnostics.simulated._MAX_KEPT", 120 * 60 * 3)
    found = hsbi.check(lf, jax.random.key(1), **BUDGET)
    assert found.places.tolist() == [0, 2, 5]
    np.testing.assert_array_equal(found.levels["locals"].truths, report.levels["locals"].truths[:, [0, 2, 5]])
    assert found.to_arviz()["prior_sbc"]["theta"].coords["clinic"].values.tolist() == [0, 2, 5]
    assert found.verdict == "trusted", str(found)


def test_wrong_surrogate_is_found_and_real_simulations_are_counted(lf):
    before = lf.ledger["check"]
    other = with_posterior(lf)
    linear = lf.surrogate["y"].linear
    # The log scale gains log 1.4, in the row of the constant.
    wrong = dataclasses.replace(lf.surrogate["y"], linear=linear._replace(log_scale=linear.log_scale.at[-1].add(0.34)))
    other.surrogate = {"y": wrong}
    found = hsbi.check(other, jax.random.key(5), num_simulations=25 * NUM_SITES, **BUDGET)
    assert found["surrogate of y"].verdict == "wrong", str(found)
    assert "more simulations" in found["surrogate of y"].advice
    assert found.surrogates["y"].evidence[0].ratio == pytest.approx(1.4, rel=0.12)
    assert found.num_simulations == 25 * NUM_SITES == other.ledger["check"] - before
    assert list(found.real_levels) == ["globals", "locals", "joint"]
    # Data of the wrong surrogate do not fit the posterior of the true model; data of the real simulator do.
    assert found["locals"].verdict != "trusted"
    assert found["locals, real simulator"].verdict == found["globals, real simulator"].verdict == "trusted"


def test_without_simulations_the_surrogate_is_unknown_until_some_are_granted(lf):
    other = with_posterior(lf)
    other.simulations, other._drawn = None, None
    found = hsbi.check(other, jax.random.key(6), **BUDGET)
    assert found["surrogate of y"].verdict == "unknown"
    assert "num_simulations" in found["surrogate of y"].advice
    assert "observed data" not in [line.name for line in found.lines]
    found = hsbi.check(other, jax.random.key(6), num_simulations=100, **BUDGET)
    assert found["surrogate of y"].verdict == "trusted"
    assert found.num_simulations == 100
    assert found.real_levels == {}


@pytest.mark.slow
def test_a_range_of_site_counts_is_judged_by_their_number():
    ranged = make_estimator(num_sites=(3, 12))
    found = hsbi.check(ranged, jax.random.key(7), **BUDGET)
    assert found["by number of sites"].verdict == "trusted", str(found)
    sizes = found.num_sites
    assert (sizes.min(), sizes.max()) == (3, 12)
    # More sites, more contraction: exactly 1 - 1 / (1 + S / 2) for mu.
    contraction = found.levels["globals"].contraction[:, 0, 0]
    few, many = np.median(contraction[sizes <= 5]), np.median(contraction[sizes >= 10])
    assert few < many
    assert many == pytest.approx(1 - 1 / (1 + 11 / 2), abs=0.06)
    assert np.isnan(np.asarray(found.to_arviz()["prior_sbc"]["theta"])).any()
    panel = found.plot().axes[3]
    assert panel.get_xlabel() == "size of plate 'clinic'"
    plt.close("all")


def test_arviz_groups_have_the_names_of_the_model(report):
    groups = report.to_arviz()
    ranks = groups["prior_sbc"]["theta"]
    assert ranks.dims == ("chain", "draw", "clinic")
    assert ranks.shape == (1, 120, NUM_SITES)
    assert float(ranks.min()) >= 0
    assert float(ranks.max()) <= 1
    assert groups["prior_sbc"]["mu"].shape == (1, 120)
    np.testing.assert_array_equal(groups["prior_sbc_truth"]["mu"][0], report.levels["globals"].truths[:, 0, 0])
    assert groups["surrogate_pit"]["y"].shape == (1, 300, 1)


def test_figure_and_page_hold_every_check(report, tmp_path):
    figure = report.plot()
    titles = [axes.get_title(loc="left") for axes in figure.axes if axes.get_visible()]
    assert titles[:2] == ["calibration of globals", "calibration of locals"]
    assert titles[-3:] == ["observed data", "posterior predictive", "verdicts"]
    assert [axes.get_xlabel() for axes in figure.axes[6:8]] == ["clinic", "clinic"]
    assert sorted(tick.get_text() for tick in figure.axes[7].get_xticklabels()) == ["0", "1", "2", "3", "4", "5"]
    page = tmp_path / "report.html"
    report.to_html(page)
    text = page.read_text(encoding="utf-8")
    assert text.count("data:image/png;base64,") == 2
    assert "http" not in text
    for line in report.lines:
        assert f"<td>{line.name}</td>" in text
    plt.close("all")


def test_progress_is_reported(lf):
    seen = {}

    class Bar:
        def __init__(self, name, total):
            self.name, self.total = name, total

        def update(self, done, note=""):
            seen[self.name] = (done, self.total)

        def close(self):
            pass

    hsbi.check(lf, jax.random.key(8), progress=Bar, **BUDGET)
    assert seen["check: draws"] == (120, 120)


def test_what_cannot_be_checked_is_refused(lf):
    with pytest.raises(ValueError, match="num_data_sets is 10, expected at least 50"):
        hsbi.check(lf, jax.random.key(0), num_data_sets=10)
    with pytest.raises(ValueError, match="num_draws is 5, expected at least 19"):
        hsbi.check(lf, jax.random.key(0), num_draws=5)
    with pytest.raises(ValueError, match="no trained posterior yet"):
        hsbi.check(hsbi.LF(exact_posterior.model, num_simulations=5, progress=False), jax.random.key(0))
    direct = hsbi.Direct(exact_posterior.model, num_simulations=50, progress=False)
    direct._program, direct.posterior = lf._program, lf.posterior
    with pytest.raises(ValueError, match=r"Direct has no surrogate.*one data set of it takes 6"):
        hsbi.check(direct, jax.random.key(0))
    shared = with_posterior(lf)
    shared.surrogate = {}
    with pytest.raises(ValueError, match=r"LF has no surrogate.*one data set of it takes 6"):
        hsbi.check(shared, jax.random.key(0))
    with pytest.raises(ValueError, match="Only 0 of 120 data sets have finite draws"):
        hsbi.check(with_posterior(lf, use=1.0, shift=jnp.nan, scale=1.0), jax.random.key(0), **BUDGET)


@pytest.mark.slow
def test_direct_is_checked_on_real_data_sets(lf):
    direct = hsbi.Direct(exact_posterior.model, num_simulations=50, progress=False)
    direct._program, direct.posterior = lf._program, lf.posterior
    found = hsbi.check(direct, jax.random.key(9), num_draws=60, num_simulations=100 * NUM_SITES)
    assert [line.name for line in found.lines] == ["globals", "locals", "joint"]
    # An exact posterior is doubtful on some line once in a hundred checks, and with this key it is, on `joint`.
    assert [found[level].verdict for level in ("globals", "locals")] == ["trusted", "trusted"]
    assert found.verdict != "wrong"
    assert direct.ledger["check"] == found.num_simulations == 100 * NUM_SITES
