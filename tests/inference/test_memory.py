"""Training holds simulations once, however many there are.

What training holds beyond them is measured at two sizes: a copy grows with the simulations, all else does not. Arrays
of NumPy are traced, those of JAX are listed whenever progress is reported; what compiled code holds for itself is
measured in `test_rows` and by `python -m hsbi.bench.execution`.
"""

import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import hsbi

WIDTH = 50
SITES = jnp.linspace(-1.0, 1.0, 5)
BRIEF = hsbi.FitConfig(num_steps=2, epoch_steps=1)
# A tenth is held out and encoded, and each row has a few numbers of its own: parameters, weight and places.
MOST = 0.4


def model(x, failing=0.0, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", len(x)):
        eta = numpyro.sample("eta", dist.Normal(mu, 1.0))
        numpyro.sample("y", hsbi.Simulator(simulate, eta, x, failing), obs=y)


def simulate(key, eta, x, failing):
    noise = jax.random.normal(key, (WIDTH,))
    return jnp.where(jax.random.uniform(jax.random.fold_in(key, 1)) < failing, jnp.nan, eta + x + noise)


class OnlySurrogates(hsbi.LF):
    """An `LF` that trains no posterior, as that never sees the simulations."""

    def _fit_posterior(self, key, held_out_key, source, states):
        self.watched()


def live_bytes():
    """Add up the arrays that JAX holds, those that share their memory once."""
    arrays = [a for a in jax.live_arrays() if not jnp.issubdtype(a.dtype, jax.dtypes.prng_key)]
    return sum({array.unsafe_buffer_pointer(): array.nbytes for array in arrays}.values())


def measure(number, failing):
    """Give the size of simulations, and the most that JAX and NumPy hold beside them while surrogates are trained."""
    most = 0

    def watch(*_):
        nonlocal most
        most = max(most, live_bytes())

    class Bar:
        def __init__(self, name, total):
            watch()

        update = close = watch

    lf = OnlySurrogates(
        model,
        num_simulations=number,
        progress=False,
        invalid="drop",
        surrogate_config=hsbi.SurrogateConfig(width=4, flow_width=4, batch_size=8, correction=BRIEF, flow=BRIEF),
    )
    lf.watched, lf._progress = watch, Bar
    rows = lf.simulate(jax.random.key(0), SITES, failing)
    size = sum(value.nbytes for value in (*rows.values.values(), *rows.observations.values()))
    lf.fit(jax.random.key(1))
    before, most = live_bytes(), 0
    tracemalloc.start()
    try:
        lf.fit(jax.random.key(2))
        _, traced = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return np.array([size, most - before, traced])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Simulations failed", "ignore:.*are not valid and are left out")
def test_training_holds_no_second_copy_of_simulations(monkeypatch):
    """A tenth of the simulations fail, and are passed over where they are."""
    # Regression takes so many values and no more; fewer than in either run.
    monkeypatch.setattr("hsbi.inference.surrogate_fit._MAX_SOLVED", 2**12)
    small, large = (measure(number, 0.1) for number in (4_000, 24_000))
    more = large - small
    assert more[0] == 20_000 * 4 * (WIDTH + 2)
    assert more[1] / more[0] < MOST, "arrays of JAX"
    assert more[2] / more[0] < MOST, "arrays of NumPy"
