import numpy as np
import pytest

from hsbi.bench import counts


def test_total_variation_is_that_of_the_draws():
    draws = np.random.default_rng(0).poisson(3.0, 100_000)
    # Draws add about 0.4 sum sqrt(p / 100,000), 0.005 at this rate.
    assert counts.total_variation(draws, 3.0) < 0.01
    # Between Poisson(3) and Poisson(3) + 1 it is the largest probability.
    assert counts.total_variation(draws + 1, 3.0) == pytest.approx(0.224, abs=0.01)
