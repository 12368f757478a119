"""`LF` and `Direct` simulate anywhere, keep their simulations and find them again."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import hsbi
from hsbi.model.failures import SimulationError
from tests.simulation.simulators import Switch

X = np.array([0.5, -1.0, 2.0])
KEY = jax.random.key(0)
SWITCH = Switch()
SHORT = hsbi.FitConfig(num_steps=4, epoch_steps=2)


def model(x, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", len(x)):
        eta = numpyro.sample("eta", dist.Normal(mu, 1.0))
        numpyro.sample("y", hsbi.Simulator(SWITCH, eta, x, host=True, event_shape=(3,)), obs=y)


@pytest.fixture
def tally(tmp_path):
    SWITCH.set("well", tally=tmp_path / "tally")
    yield tmp_path / "tally"
    SWITCH.set("well")


def test_lf_goes_on_with_a_store(tally, tmp_path):
    notes = []

    class Bar:
        def __init__(self, name, total):
            self.name = name

        def update(self, done, note=""):
            notes.append((self.name, done, note))

        def close(self):
            pass

    settings = {"observed": ("y",), "store": tmp_path / "store", "progress": Bar}
    first = hsbi.LF(model, num_simulations=30, workers=2, **settings)
    first.simulate(KEY, X)
    more = hsbi.LF(model, num_simulations=50, **settings)
    more.simulate(hsbi.Store(tmp_path / "store").key, X)
    assert first.ledger.counts == {"simulate": 30}
    assert more.ledger.counts == {"simulate": 20}
    assert more.ledger.restored == {"simulate": 30}
    assert tally.stat().st_size == 50
    np.testing.assert_array_equal(more.simulations.observations["y"][:30], first.simulations.observations["y"])
    assert notes[-1][:2] == ("simulations", 50)
    assert notes[-1][2].endswith("/s")
    # Data are no part of what simulations depend on.
    hsbi.LF(model, num_simulations=50, **settings).simulate(KEY, X, y=np.zeros((3, 3)))
    assert tally.stat().st_size == 50
    with pytest.raises(ValueError, match="belongs to another run: argument 'x' has other values"):
        hsbi.LF(model, num_simulations=50, **settings).simulate(KEY, X + 1.0)


@pytest.mark.slow
def test_other_networks_are_trained_without_a_simulation(tally, tmp_path):
    posteriors = []
    for width, calls in ((8, 120), (12, 0)):
        lf = hsbi.LF(
            model,
            num_simulations=120,
            store=tmp_path / "store",
            progress=False,
            surrogate_config=hsbi.SurrogateConfig(width=width, correction=SHORT, flow=SHORT),
            posterior_config=hsbi.FactorizedConfig(width=width, batch_size=8, head=SHORT, flow=SHORT),
        )
        lf.simulate(KEY, X)
        lf.fit(jax.random.key(1))
        assert lf.ledger.total == calls
        posteriors.append(lf.posterior)
    assert tally.stat().st_size == 120
    assert [posterior.config.width for posterior in posteriors] == [8, 12]
    # Each run keeps its states in a folder of its own.
    assert len(list((tmp_path / "store" / "fits").iterdir())) == 2


@pytest.mark.fault(4)
@pytest.mark.parametrize("kind", [hsbi.LF, hsbi.Direct])
def test_nothing_is_trained_where_every_output_is_not_finite(tally, tmp_path, monkeypatch, kind):
    SWITCH.set("not_finite", above=-100.0, tally=tally)
    monkeypatch.setattr(kind, "fit", lambda *args, **kwargs: pytest.fail("was trained"))
    estimator = kind(model, num_simulations=300, store=tmp_path / "store", progress=False)
    with pytest.raises(SimulationError, match=r"None of the first .*'y': .*nonfinite.*The prior drew .*'mu' from"):
        estimator.run(KEY, X, y=np.zeros((3, 3)))
    assert tally.stat().st_size < 300
    assert len(hsbi.Store(tmp_path / "store")) == 0


def test_direct_goes_on_with_a_store(tally, tmp_path):
    settings = {"observed": ("y",), "store": tmp_path / "store", "progress": False}
    first = hsbi.Direct(model, num_simulations=12, **settings)
    first.simulate(KEY, X)
    more = hsbi.Direct(model, num_simulations=21, workers=2, **settings)
    more.simulate(KEY, X)
    assert more.ledger.counts == {"simulate": 9}
    assert tally.stat().st_size == 21
    np.testing.assert_array_equal(more.simulations[1]["y"][:4], first.simulations[1]["y"])
