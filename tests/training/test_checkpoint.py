"""A fit that is stopped anywhere and started again gives what it would have given, bit by bit."""

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hsbi.training import Checkpoint, FitConfig, fit
from hsbi.training import checkpoint as module

TARGET = np.array([1.0, -2.0, 0.5], np.float32)
START = {"x": np.zeros(3, np.float32), "y": {"z": np.ones((2, 1), np.float32)}}
CONFIG = FitConfig(num_steps=50, epoch_steps=10, learning_rate=0.05, warmup_steps=10, ema_decay=0.9)
FACTS = {"the data": {"digest": "abc"}}


@dataclasses.dataclass(frozen=True)
class Quadratic:
    """Give the noisy distance to a target."""

    def loss(self, params: Any, key: jax.Array, data: jax.Array) -> jax.Array:
        shift = 0.3 * jax.random.normal(key, params["x"].shape)
        return jnp.sum((params["x"] - data + shift) ** 2) + jnp.sum(params["y"]["z"] ** 2)

    def validate(self, params: Any, data: jax.Array) -> jax.Array:
        return jnp.sum((params["x"] - data) ** 2) + jnp.sum(params["y"]["z"] ** 2)


@dataclasses.dataclass(frozen=True)
class Breaking(Quadratic):
    """Give NaN once the second coordinate has gone beyond -0.3."""

    def loss(self, params: Any, key: jax.Array, data: jax.Array) -> jax.Array:
        return jnp.where(params["x"][1] < -0.3, jnp.nan, super().loss(params, key, data))


class Stop(Exception):
    """Stand for a kill."""


class StopAfter:
    """A progress bar that stops training at some epoch, as a kill would: without asking."""

    def __init__(self, epochs, stop):
        self.epochs, self.stop = epochs, stop

    def __call__(self, name, total):
        return self

    def update(self, done, note=""):
        self.epochs -= 1
        if self.epochs == 0:
            self.stop()

    def close(self):
        pass


def run(folder, *, key=0, config=CONFIG, facts=FACTS, objective=None, stop_after=0, stop=None, name="a stage: flow"):
    progress = StopAfter(stop_after, stop)
    checkpoint = None if folder is None else Checkpoint(folder, facts)
    objective = objective or Quadratic()
    return fit(
        jax.random.key(key), START, objective, TARGET, config, name=name, progress=progress, checkpoint=checkpoint
    )


def stop():
    raise Stop


def assert_equal(ours, theirs):
    assert all(
        a.dtype == b.dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes()
        for a, b in zip(jax.tree.leaves(ours.params), jax.tree.leaves(theirs.params), strict=True)
    )
    assert jax.tree.structure(ours.params) == jax.tree.structure(theirs.params)
    assert ours.losses.tobytes() == theirs.losses.tobytes()
    assert (ours.initial, ours.best) == (theirs.initial, theirs.best)


@pytest.fixture
def every_epoch(monkeypatch):
    monkeypatch.setattr(module, "INTERVAL", 0.0)


@pytest.fixture(scope="module")
def expected():
    return run(None)


def test_checkpoints_change_nothing(tmp_path, expected, every_epoch):
    assert_equal(run(tmp_path), expected)


@pytest.mark.usefixtures("every_epoch")
@pytest.mark.parametrize("epochs", [1, 2, 3, 4, 5])
def test_a_stopped_fit_goes_on_bit_by_bit(tmp_path, expected, epochs):
    with pytest.raises(Stop):
        run(tmp_path, stop_after=epochs, stop=stop)
    assert_equal(run(tmp_path), expected)


@pytest.mark.usefixtures("every_epoch")
def test_a_fit_stopped_at_every_epoch_in_turn_still_ends_the_same(tmp_path, expected):
    with pytest.raises(Stop):
        run(tmp_path, stop_after=1, stop=stop)
    for _ in range(4):
        with pytest.raises(Stop):
            # The first epoch of each attempt is the one that was lost, the second is new.
            run(tmp_path, stop_after=2, stop=stop)
    assert_equal(run(tmp_path), expected)


def test_a_finished_stage_is_not_trained_again(tmp_path, expected):
    run(tmp_path)
    assert_equal(run(tmp_path, stop_after=1, stop=stop), expected)


def test_between_two_checkpoints_is_the_interval(tmp_path, monkeypatch):
    clock = iter(float(second) for second in range(0, 1000, 6))
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    written = []
    write = module.Stage.write
    monkeypatch.setattr(
        module.Stage,
        "write",
        lambda self, tree, numbers, **k: (written.append(len(numbers.losses)), write(self, tree, numbers, **k)),
    )
    run(tmp_path)
    # The clock is read once an epoch, and once a write: at 6, 12 (written, 18), 24, 30 (written, 36), and at the end.
    assert written == [2, 4, 5]


def test_early_stopping_goes_on_counting(tmp_path, every_epoch):
    config = dataclasses.replace(CONFIG, num_steps=400, learning_rate=0.5, patience=3)
    whole = run(None, config=config)
    assert len(whole.losses) < config.num_epochs
    with pytest.raises(Stop):
        run(tmp_path, config=config, stop_after=len(whole.losses) - 1, stop=stop)
    assert_equal(run(tmp_path, config=config), whole)


@pytest.mark.usefixtures("every_epoch")
def test_a_loss_that_breaks_warns_again_when_the_stage_is_taken_from_its_checkpoint(tmp_path):
    with pytest.warns(UserWarning, match=r"became nan at step \d+\.") as first:
        broken = run(tmp_path, objective=Breaking())
    with pytest.warns(UserWarning, match=r"became nan at step \d+\.") as second:
        again = run(tmp_path, objective=Breaking())
    assert str(first[0].message) == str(second[0].message)
    assert np.all(np.isfinite(again.params["x"]))
    assert_equal(again, broken)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"key": 1}, "stage 'a stage: flow': key was 0,0, is 0,1"),
        ({"config": dataclasses.replace(CONFIG, learning_rate=0.1)}, "learning_rate was 0.05, is 0.1"),
        ({"facts": {"the data": {"digest": "xyz"}}}, "the data: digest was abc, is xyz"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, changes, message):
    run(tmp_path)
    with pytest.raises(ValueError, match=f"is that of another run: .*{message}"):
        run(tmp_path, **changes)


def test_a_checkpoint_of_other_weights_is_refused(tmp_path):
    run(tmp_path)
    wider = {**START, "x": np.zeros(4, np.float32)}
    target = np.zeros(4, np.float32)
    with pytest.raises(ValueError, match=r"another run: weights .*\(3,\).*\(4,\)"):
        fit(
            jax.random.key(0),
            wider,
            Quadratic(),
            target,
            CONFIG,
            name="a stage: flow",
            checkpoint=Checkpoint(tmp_path, FACTS),
        )
    with pytest.raises(ValueError, match="its weights were 2 arrays, are 1"):
        Checkpoint(tmp_path, FACTS).stage("a stage: flow", {"key": "0,0", **vars(CONFIG)}).read(None, {"x": START["x"]})


def test_runs_with_folders_of_their_own_are_never_refused(tmp_path, expected):
    for facts in (FACTS, {"the data": {"digest": "xyz"}}):
        checkpoint = Checkpoint.keyed(tmp_path, facts)
        assert_equal(fit(jax.random.key(0), START, Quadratic(), TARGET, CONFIG, checkpoint=checkpoint), expected)
    assert len(list(tmp_path.iterdir())) == 2


def test_stages_do_not_share_a_file(tmp_path):
    for name in ("a: b", "a; b"):
        run(tmp_path, name=name)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.usefixtures("every_epoch")
def test_a_damaged_checkpoint_is_set_aside_and_the_stage_starts_over(tmp_path, expected):
    with pytest.raises(Stop):
        run(tmp_path, stop_after=3, stop=stop)
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.warns(UserWarning, match="damaged.*the stage starts over"):
        assert_equal(run(tmp_path), expected)
    assert path.with_suffix(".damaged").read_bytes() == content


def test_legacy_keys_have_a_text_as_well():
    assert module.describe_key(jax.random.PRNGKey(3)) == module.describe_key(jax.random.key(3)) == "0,3"


def test_the_digest_of_arrays_sees_values_places_shapes_and_types():
    base = {"a": np.arange(6.0), "b": np.array(["x"])}
    others = [
        {**base, "a": np.arange(6.0) + 1e-15},
        {**base, "a": np.arange(6.0).reshape(2, 3)},
        {**base, "a": np.arange(6.0, dtype=np.float32)},
        {"c": base["a"], "b": base["b"]},
        {**base, "b": np.array(["y"])},
    ]
    digests = {module.digest_arrays(tree) for tree in (base, *others)}
    assert len(digests) == 6
    assert module.digest_arrays({"a": jnp.arange(6.0), "b": base["b"]}) in digests


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.fault(23)
@pytest.mark.slow
def test_a_killed_process_goes_on_bit_by_bit(tmp_path, expected):
    code = (
        "import sys; from tests.training import test_checkpoint as t\n"
        "t.module.INTERVAL = 0.0\n"
        "t.run(sys.argv[1], stop_after=int(sys.argv[2]), stop=t.kill)\n"
    )
    root = Path(__file__).parents[2]
    for epochs in (2, 2, 0):
        done = subprocess.run([sys.executable, "-c", code, tmp_path, str(epochs)], cwd=root, check=False)
        assert done.returncode == (-signal.SIGKILL if epochs else 0)
    assert_equal(run(tmp_path, stop_after=1, stop=stop), expected)
