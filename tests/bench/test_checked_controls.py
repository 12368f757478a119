import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hsbi.bench import checked_controls as controls
from hsbi.bench.tasks import gaussian_linear


@pytest.fixture(scope="module")
def lf():
    return controls.make_estimator(0)


@pytest.mark.slow
def test_posterior_is_that_of_the_reference(lf):
    _, y = gaussian_linear.draw(jax.random.key(5), controls.NUM_SITES)
    draws = lf.changed({}).sample(jax.random.key(6), controls.NUM_SITES, y=jnp.asarray(y), num_samples=4000)
    exact = gaussian_linear.reference(jax.random.key(7), y, 4000)
    for name in ("sigma", "mu"):
        mean, sd = exact[name].mean(0), exact[name].std(0)
        # Four and a half standard errors of both means, and of both standard deviations.
        np.testing.assert_allclose(draws[name].mean(0), mean, atol=4.5 * np.sqrt(2 / 4000) * sd.max())
        np.testing.assert_allclose(draws[name].std(0) / sd, 1.0, atol=0.08)


@pytest.mark.slow
@pytest.mark.parametrize("name", controls.CONTROLS)
def test_control_is_called_out_at_its_level(lf, name):
    found = controls.check_control(lf, 50, name)
    for line in controls.CONTROLS[name][1]:
        assert found[line] in ("doubtful", "wrong")
    if name == "exact":
        assert set(found.values()) == {"trusted"}


def test_table_counts_verdicts(monkeypatch, capsys):
    def check_control(lf, seed, name):
        return {line: "wrong" if line in controls.CONTROLS[name][1] else "trusted" for line in controls.LINES}

    monkeypatch.setattr(controls, "make_estimator", lambda seed: None)
    monkeypatch.setattr(controls, "check_control", check_control)
    monkeypatch.setattr(sys, "argv", ["checked_controls", "--repeats", "3"])
    controls.main()
    rows = {line[:26].strip(): line[26:].split() for line in capsys.readouterr().out.splitlines()}
    assert rows["exact"] == [*["3", "/", "0", "/", "0"] * 6, "3"]
    assert rows["locals swapped"][5:10] == ["0", "/", "0", "/", "3"]
    assert rows["locals swapped"][-1] == "0"
