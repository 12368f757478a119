"""The normal within an interval against SciPy in double precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from hsbi.inference.cells import log_mass, truncated_normal

INTERVALS = [(-0.3, 0.4), (-1e6, -1.0), (2.0, 1e6), (1.5, 1.52), (-4.0, -3.99), (5.0, 6.0), (-1e6, 1e6)]


@pytest.mark.parametrize(("low", "high"), INTERVALS)
def test_mass_is_that_of_the_interval(low, high):
    mirrored = (-high, -low) if low > 0 else (low, high)
    exact = np.log(np.diff(stats.norm.cdf(mirrored))[0])
    np.testing.assert_allclose(log_mass(jnp.asarray(low), jnp.asarray(high)), exact, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize(("low", "high"), INTERVALS[:5])
def test_draws_follow_the_truncated_normal(low, high):
    uniform = (np.arange(1000) + 0.5) / 1000
    found = np.asarray(truncated_normal(jnp.asarray(uniform), jnp.full(1000, low), jnp.full(1000, high)), float)
    exact = stats.truncnorm(low, high).ppf(uniform)
    # Mirroring reverses the order of the draws, not their set.
    np.testing.assert_allclose(np.sort(found), np.sort(exact), atol=2e-3 * min(1.0, high - low) + 2e-4)


def test_mass_has_a_gradient_far_out():
    for low, high in ((-40.0, -39.0), (30.0, 1e6), (-1e6, -25.0)):
        slope = jax.grad(lambda shift, a=low, b=high: log_mass(a + shift, b + shift))(0.0)
        assert np.isfinite(slope)
