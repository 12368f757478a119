import numpy as np
import pytest

from hsbi.diagnostics.evidence import Evidence
from hsbi.diagnostics.lines import local_line, observation_line, show_p
from hsbi.diagnostics.observation_check import ObservationCheck, check_observation, predictive_tail
from hsbi.diagnostics.two_sample import Lc2st
from hsbi.diagnostics.verdict import Line, judge, worse


def evidence(p_value, bias=0.0, error=0.05, ratio=1.0, spread=0.05, **options):
    return Evidence("mu", p_value, bias, error, ratio, ratio * (1 - spread), ratio * (1 + spread), **options)


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (evidence(0.5, bias=0.6), "trusted"),  # not significant
        (evidence(1e-8, bias=0.1), "trusted"),  # certain, and certainly small: 0.1 +- 0.098
        (evidence(1e-8, bias=0.3), "doubtful"),  # 0.2 to 0.4 around what is tolerated
        (evidence(1e-8, bias=0.5), "wrong"),
        (evidence(1e-8, bias=-0.5), "wrong"),
        (evidence(1e-8, ratio=1.6), "wrong"),
        (evidence(1e-8, ratio=0.6), "wrong"),
        (evidence(1e-8, ratio=1.25), "doubtful"),
    ],
)
def test_verdict_needs_a_rejection_and_an_error_that_matters(one, expected):
    verdict, p_value, worst = judge([one], num_lines=5)
    assert verdict == expected
    assert (p_value, worst) == (one.p_value, one)


def test_p_values_are_compared_with_the_rate_divided_by_lines_and_tests():
    tests = [evidence(0.004, bias=0.6), *(evidence(0.9) for _ in range(1))]
    assert judge(tests, num_lines=1)[0] == "wrong"
    assert judge(tests, num_lines=2)[0] == "trusted"
    assert judge([*tests, evidence(0.9)], num_lines=1)[0] == "trusted"
    assert judge(tests, num_lines=1)[1] == pytest.approx(0.008)


def test_small_errors_matter_where_many_sites_add_up():
    assert judge([evidence(1e-8, bias=0.1, error=0.01)], 1)[0] == "trusted"
    assert judge([evidence(1e-8, bias=0.1, error=0.01)], 1, max_bias=0.05)[0] == "wrong"


def test_natural_quantities_are_shown_before_derived_ones():
    derived, plain = evidence(1e-9, bias=2.0, derived=True), evidence(1e-9, bias=0.6)
    assert judge([derived, plain], 1)[2] is plain
    assert judge([derived], 1)[2] is derived


def test_worst_verdict_and_text():
    assert worse(["trusted", "wrong", "doubtful"]) == "wrong"
    assert worse(["trusted", "unknown"]) == "unknown"
    line = Line(name="globals", verdict="wrong", finding="mu: off", advice="train longer")
    assert str(line) == "wrong    globals: mu: off -> train longer"
    assert [show_p(p) for p in (0.5, 0.0123, 4e-5, 1e-20)] == ["0.5", "0.012", "4e-05", "< 1e-9"]


def test_observed_data_like_simulated_ones_are_exchangeable_with_them():
    rng = np.random.default_rng(0)
    p_values = []
    for _ in range(300):
        sites = rng.standard_t(4, size=(100, 7, 2))
        summary = sites.mean(1)
        check = check_observation(sites[0], sites[1:], summary[0], summary[1:], labels=[str(i) for i in range(7)])
        p_values.append(check.site_p_value)
    # Rank p-values are uniform: three standard errors of 300 around one half and one tenth.
    assert abs(np.mean(np.array(p_values) <= 0.5) - 0.5) < 0.09
    assert abs(np.mean(np.array(p_values) <= 0.1) - 0.1) < 0.055


def test_a_site_far_out_is_named_and_one_line_says_so():
    rng = np.random.default_rng(1)
    simulated, observed = rng.normal(size=(500, 4, 2)), rng.normal(size=(4, 2))
    observed[2] = 30.0
    check = check_observation(
        observed, simulated, observed.mean(0), simulated.mean(1), labels=[f"clinic {i}" for i in range(4)]
    )
    assert check.outside == ("clinic 2",)
    line = observation_line(check)(6)
    assert line.verdict == "wrong"
    assert line.advice.startswith("clinic 2 outside what was simulated")


def test_predictive_tail_is_that_of_squares():
    rng = np.random.default_rng(2)
    replicated = rng.chisquare(10, size=(4000, 1))
    # P(chi2_10 > 18.307) = 0.05, with data that do not vary with the draw.
    assert predictive_tail(np.full((4000, 1), 18.307), replicated)[0] == pytest.approx(0.05, abs=0.015)
    check = ObservationCheck(
        labels=("a",), distance=np.ones(1), limit=np.full(3, 4.0), site_p_value=0.4, summary_p_value=0.5,
        total_p_value=1e-6,
    )  # fmt: skip
    line = observation_line(check)(6)
    assert (line.verdict, line.p_value) == ("doubtful", pytest.approx(3e-6))
    assert "does not reproduce the data" in line.advice


def observe(seed, misfit, replicated):
    """Check four sites whose data are such as were simulated, with squared residuals of 20 values each."""
    rng = np.random.default_rng(seed)
    simulated, observed = rng.normal(size=(500, 4, 2)), rng.normal(size=(4, 2)) / 2
    return check_observation(
        observed, simulated, observed.mean(0), simulated.mean(1), labels=[f"clinic {i}" for i in range(4)],
        discrepancy=(misfit, replicated), num_known=np.full(4, 20),
    )  # fmt: skip


def test_a_site_that_the_posterior_does_not_reproduce_is_named():
    rng = np.random.default_rng(4)
    replicated = rng.chisquare(20, size=(500, 4))
    misfit = np.tile([18.0, 22.0, 19.0, 20.0], (500, 1))
    check = observe(4, misfit, replicated)
    np.testing.assert_allclose(check.misfit, misfit[0] / 20)
    assert check.misfits == ()
    assert observation_line(check)(6).verdict == "trusted"
    misfit[:, 1] = 160.0
    check = observe(4, misfit, replicated)
    assert check.outside == ()
    assert check.misfits == ("clinic 1",)
    line = observation_line(check)(6)
    assert line.verdict == "doubtful"
    assert "does not reproduce clinic 1" in line.advice


def test_sites_with_heavy_tails_are_not_called_misfits():
    rng = np.random.default_rng(5)
    excess = []
    for seed in range(200):
        # A replicate of the very distribution stands for the data; t with 3 degrees has no fourth moment.
        squares = np.sum(rng.standard_t(3, size=(501, 4, 20)) ** 2, axis=-1)
        check = observe(seed, np.tile(squares[0], (500, 1)), squares[1:])
        excess.append(check.misfit.max() / check.misfit_limit[-1])
    # The chance to exceed all 500 replicates is 1 / 501 for each; 3 or fewer have a chance of 0.999.
    assert np.sum(np.array(excess) > 1) <= 3


def test_local_test_is_judged_by_its_nulls():
    nulls = np.exp(np.random.default_rng(3).normal(np.log(0.002), 0.5, size=60))
    assert local_line(Lc2st(0.002, 0.5, nulls, 0.5))(6).verdict == "trusted"
    assert local_line(Lc2st(0.015, 0.01, nulls, 0.6))(6).verdict == "doubtful"
    assert local_line(Lc2st(0.05, 0.01, nulls, 0.7))(6).verdict == "wrong"
