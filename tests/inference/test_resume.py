"""Training of whole estimators with checkpoints: what a run depends on, and a run that is killed."""

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import hsbi
from hsbi.inference import validity
from hsbi.inference.arrays import read_design
from hsbi.inference.identity import training_facts
from hsbi.training import checkpoint as module
from hsbi.training.facts import list_differences
from tests.inference import problems
from tests.inference.conftest import BRIEF

SIGMA, Y = problems.SCHOOLS_SIGMA, problems.SCHOOLS_Y
SHORT = dataclasses.replace(BRIEF, num_steps=12, epoch_steps=3)
SETTINGS = {
    "surrogate_config": hsbi.SurrogateConfig(width=8, correction=SHORT, flow=SHORT),
    "posterior_config": hsbi.FactorizedConfig(width=8, batch_size=8, head=SHORT, flow=SHORT),
}
KEY = jax.random.key(1)


def wider(sigma, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 50.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("school", sigma.shape[0]):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


class KillAt:
    """A progress bar that stops a named stage after some epochs."""

    def __init__(self, stage, epochs, stop):
        self.stage, self.epochs, self.stop = stage, epochs, stop
        self.seen = []

    def __call__(self, name, total):
        self.seen.append(name)
        return self

    def update(self, done, note=""):
        if self.seen[-1] == self.stage:
            self.epochs -= 1
            if self.epochs == 0:
                self.stop()

    def close(self):
        pass


class Stop(Exception):
    """Stand for a kill."""


def stop():
    raise Stop


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def simulated(model=problems.eight_schools, *, seed=0, sigma=SIGMA, num_simulations=120, progress=False, **settings):
    lf = hsbi.LF(model, num_simulations=num_simulations, num_samples=20, progress=progress, **{**SETTINGS, **settings})
    lf.simulate(jax.random.key(seed), sigma, y=Y)
    return lf


@pytest.fixture(scope="module")
def facts():
    return training_facts(simulated(), KEY)


def test_equal_runs_have_equal_facts_whatever_the_data(facts):
    lf = simulated()
    assert list_differences(facts, training_facts(lf, KEY)) == []
    lf.simulate(jax.random.key(0), SIGMA, y=Y + 1.0)
    assert list_differences(facts, training_facts(lf, KEY)) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"seed": 5}, ["the simulations: digest was"]),
        (
            {"num_simulations": 121},
            ["the estimator: num_simulations was 120, is 121", "the simulations: digest was"],
        ),
        ({"model": wider}, ["the simulations: digest was"]),
        ({"sigma": SIGMA + 1}, ["the values of arguments: sigma was array", "the simulations: digest was"]),
        ({"num_sites": (5, 8)}, ["the estimator: num_sites was None, is (5, 8)"]),
        (
            {"posterior_config": dataclasses.replace(SETTINGS["posterior_config"], head=BRIEF)},
            ["posterior_config: head.num_steps was 12, is 60", "posterior_config: head.epoch_steps was 3, is 20"],
        ),
    ],
)
def test_another_run_is_told_by_what_differs(facts, changes, expected):
    found = list_differences(facts, training_facts(simulated(**changes), KEY))
    assert len(found) == len(expected)
    assert all(text.startswith(start) for text, start in zip(found, expected, strict=True))


def test_another_key_is_told(facts):
    assert list_differences(facts, training_facts(simulated(), jax.random.key(2))) == [
        "the random key: value was 0,1, is 0,2"
    ]


def test_checkpoints_go_where_they_are_told_and_into_the_store_by_default(tmp_path):
    lf = simulated()
    assert lf._open_checkpoint(KEY, None) is None
    lf.checkpoint = tmp_path / "own"
    assert lf._open_checkpoint(KEY, None).folder == tmp_path / "own"
    assert lf._open_checkpoint(KEY, tmp_path / "given").folder == tmp_path / "given"
    lf.checkpoint, lf.store = None, tmp_path / "store"
    folders = {lf._open_checkpoint(key, None).folder for key in (KEY, KEY, jax.random.key(2))}
    assert {folder.parent for folder in folders} == {tmp_path / "store" / "fits"}
    assert len(folders) == 2


def fit_and_kill(folder):
    """Train until the third stage, and be killed there."""
    module.INTERVAL = 0.0
    simulated(progress=KillAt("surrogate of y: flow", 3, kill)).fit(KEY, checkpoint=folder)


@pytest.mark.fault(23)
@pytest.mark.slow
def test_a_killed_fit_goes_on_bit_by_bit(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "INTERVAL", 0.0)
    code = "import sys; from tests.inference import test_resume as t; t.fit_and_kill(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, tmp_path], cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 3

    # Here it is stopped once more, in the last stage.
    again = simulated(progress=KillAt("posterior of locals: flow", 2, stop))
    with pytest.raises(Stop):
        again.fit(KEY, checkpoint=tmp_path)
    seen = again._progress.seen
    assert "surrogate of y: location, scale" not in seen
    assert "surrogate of y: flow" in seen

    resumed, whole = simulated(checkpoint=tmp_path), simulated()
    resumed.fit(KEY)
    whole.fit(KEY)
    assert jax.tree.structure(resumed.posterior) == jax.tree.structure(whole.posterior)
    for ours, theirs in zip(jax.tree.leaves(resumed.posterior), jax.tree.leaves(whole.posterior), strict=True):
        assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()
    assert {name: value.tobytes() for name, value in resumed.losses.items()} == {
        name: value.tobytes() for name, value in whole.losses.items()
    }
    with pytest.raises(ValueError, match="is that of another run: the random key: value was 0,1, is 0,3"):
        resumed.fit(jax.random.key(3))


def assert_equal_trees(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


JOINT = hsbi.JointConfig(width=8, heads=2, num_blocks=1, batch_size=8, fit=SHORT)


@pytest.mark.fault(23)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "stage"),
    [(SETTINGS["posterior_config"], "posterior of locals: flow"), (JOINT, "posterior")],
    ids=["factorized", "joint"],
)
def test_a_stopped_fit_of_direct_goes_on_bit_by_bit(tmp_path, monkeypatch, config, stage):
    monkeypatch.setattr(module, "INTERVAL", 0.0)

    def direct(progress=False):
        estimator = hsbi.Direct(
            problems.eight_schools, num_simulations=160, num_samples=20, posterior_config=config, progress=progress
        )
        estimator.simulate(jax.random.key(0), SIGMA, y=Y)
        return estimator

    stopped = direct(KillAt(stage, 2, stop))
    with pytest.raises(Stop):
        stopped.fit(KEY, checkpoint=tmp_path)
    assert stopped.posterior is None
    seen = KillAt("", 0, stop)
    resumed, whole = direct(seen), direct()
    resumed.fit(KEY, checkpoint=tmp_path)
    # Earlier stages were over, and this one was not.
    assert seen.seen[1:] == [stage]
    whole.fit(KEY)
    assert_equal_trees(resumed.posterior, whole.posterior)
    assert_equal_trees(resumed.losses, whole.losses)


def fails_above(key, eta):
    return jax.numpy.where(eta > 1.0, jax.numpy.nan, eta + jax.random.normal(key))


def failing(num_sites, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", num_sites):
        eta = numpyro.sample("eta", dist.Normal(mu, 1.0))
        numpyro.sample("y", hsbi.Simulator(fails_above, eta), obs=y)


@pytest.mark.fault(23)
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Simulations failed")
def test_a_stopped_model_of_failures_goes_on_bit_by_bit(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "INTERVAL", 0.0)
    monkeypatch.setattr(validity, "_CONFIG", dataclasses.replace(SHORT, num_steps=60, epoch_steps=20))

    def learn(progress, checkpoint):
        lf = hsbi.LF(failing, num_simulations=400, observed=("y",), progress=progress)
        lf.simulate(jax.random.key(0), 4)
        states = lf._open_checkpoint(KEY, checkpoint)
        return lf._fit_validity(
            KEY, lf._program, lf.simulations, read_design(lf._program), lf.simulations.usable, states
        )

    with pytest.raises(Stop):
        learn(KillAt("validity given globals", 2, stop), tmp_path)
    seen = KillAt("", 0, stop)
    resumed, whole = learn(seen, tmp_path), learn(False, None)
    assert seen.seen[1:] == ["validity given globals"]
    assert resumed is not None
    assert resumed.given_all is not None
    assert_equal_trees(resumed, whole)
