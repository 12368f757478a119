import jax
import pytest

import hsbi
from tests.inference import problems

# Enough training for a posterior that depends on its data; accuracy is tested elsewhere, with the defaults.
BRIEF = hsbi.FitConfig(num_steps=60, epoch_steps=20, patience=100)


@pytest.fixture(scope="session")
def brief():
    """Settings that train in seconds."""
    return {
        "surrogate_config": hsbi.SurrogateConfig(width=16, correction=BRIEF, flow=BRIEF),
        "posterior_config": hsbi.FactorizedConfig(width=16, batch_size=16, head=BRIEF, flow=BRIEF),
        "progress": False,
    }


@pytest.fixture(scope="session")
def schools(brief):
    """Eight schools, trained briefly for 5 to 10 sites."""
    lf = hsbi.LF(problems.eight_schools, num_simulations=400, num_samples=50, num_sites=(5, 10), **brief)
    lf.simulate(jax.random.key(0), problems.SCHOOLS_SIGMA, y=problems.SCHOOLS_Y)
    lf.fit(jax.random.key(1))
    return lf
