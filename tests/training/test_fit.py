"""Training against known minima, hand-computed averages and counted traces."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from hsbi.training import FitConfig, fit

TARGET = np.array([1.0, -2.0, 0.5], np.float32)
START = {"x": np.zeros(3, np.float32)}
QUICK = FitConfig(num_steps=400, epoch_steps=100, learning_rate=0.05, warmup_steps=10, ema_decay=0.9)


@dataclasses.dataclass(frozen=True)
class Quadratic:
    """Give the distance to a target; its minimum is known."""

    noise: float = 0.0

    def loss(self, params: Any, key: jax.Array, data: jax.Array) -> jax.Array:
        shift = self.noise * jax.random.normal(key, params["x"].shape)
        return jnp.sum((params["x"] - data + shift) ** 2)

    def validate(self, params: Any, data: jax.Array) -> jax.Array:
        return jnp.sum((params["x"] - data) ** 2)


@dataclasses.dataclass(frozen=True)
class Worsening(Quadratic):
    """Give a validation loss that grows as training moves."""

    def validate(self, params: Any, data: jax.Array) -> jax.Array:
        return jnp.sum(params["x"] ** 2)


@dataclasses.dataclass(frozen=True)
class Breaking(Quadratic):
    """Give NaN once the second coordinate has gone beyond -1."""

    def loss(self, params: Any, key: jax.Array, data: jax.Array) -> jax.Array:
        return jnp.where(params["x"][1] < -1.0, jnp.nan, super().loss(params, key, data))


@dataclasses.dataclass(frozen=True)
class UnknownAtFirst(Quadratic):
    """Give NaN as validation loss at the start only."""

    def validate(self, params: Any, data: jax.Array) -> jax.Array:
        return jnp.where(jnp.all(params["x"] == 0.0), jnp.nan, super().validate(params, data))


@dataclasses.dataclass(frozen=True)
class BadValidation(Quadratic):
    """Give an infinite validation loss after the start, while the training loss is fine."""

    def validate(self, params: Any, data: jax.Array) -> jax.Array:
        return jnp.where(jnp.all(params["x"] == 0.0), 1.0, jnp.inf)


class Traced(Quadratic):
    """Count traces of the loss: the body of a compiled function runs when it is traced only."""

    traces = 0

    def loss(self, params: Any, key: jax.Array, data: jax.Array) -> jax.Array:
        Traced.traces += 1
        return super().loss(params, key, data)


@pytest.fixture(scope="module")
def noisy():
    return fit(jax.random.key(0), START, Quadratic(0.1), TARGET, QUICK)


def test_reaches_the_known_minimum(noisy):
    """Averaging and the decay of the learning rate leave a fraction of the noise."""
    np.testing.assert_allclose(noisy.params["x"], TARGET, atol=0.05)
    assert noisy.initial == pytest.approx(float(np.sum(TARGET**2)))
    assert noisy.best == pytest.approx(float(np.sum((noisy.params["x"] - TARGET) ** 2)), abs=1e-6)


def test_losses_come_by_epoch(noisy):
    assert noisy.losses.shape == (QUICK.num_epochs, 2)
    assert noisy.best == noisy.losses[:, 1].min()
    assert noisy.losses[1, 0] < noisy.losses[0, 0]


def test_the_same_key_gives_the_same_weights(noisy):
    again = fit(jax.random.key(0), START, Quadratic(0.1), TARGET, QUICK)
    np.testing.assert_array_equal(again.params["x"], noisy.params["x"])
    np.testing.assert_array_equal(again.losses, noisy.losses)
    other = fit(jax.random.key(1), START, Quadratic(0.1), TARGET, QUICK)
    assert np.any(np.asarray(other.params["x"]) != np.asarray(noisy.params["x"]))


def test_the_weights_given_are_not_consumed():
    start = {"x": jnp.zeros(3)}
    fit(jax.random.key(0), start, Quadratic(0.1), TARGET, QUICK)
    np.testing.assert_array_equal(start["x"], np.zeros(3))


def test_a_second_fit_traces_nothing():
    fit(jax.random.key(0), START, Traced(0.1), TARGET, QUICK)
    assert Traced.traces > 0
    before = Traced.traces
    fit(jax.random.key(1), {"x": np.ones(3, np.float32)}, Traced(0.1), TARGET + 1.0, QUICK)
    assert Traced.traces == before
    # Negative control: another objective is another step.
    fit(jax.random.key(1), START, Traced(0.2), TARGET, QUICK)
    assert Traced.traces > before


def test_average_and_steps_follow_their_formulas():
    """Repeat three steps by hand: clip, Adam on the warm-up and cosine schedule, average with its own warm-up."""
    config = FitConfig(
        num_steps=3, epoch_steps=3, learning_rate=0.1, final_fraction=0.5, warmup_steps=1, clip_norm=1.5, ema_decay=0.2
    )
    result = fit(jax.random.key(0), START, Quadratic(), TARGET, config)
    # Warm-up: 0 at step 0; peak at step 1; then half a cosine from 0.1 to 0.05 over two steps.
    rates = [0.0, 0.1, 0.1 * (0.5 + 0.5 * 0.5)]
    x = average = np.zeros(3)
    first = second = np.zeros(3)
    losses = []
    for step, rate in enumerate(rates):
        losses.append(np.sum((x - TARGET) ** 2))
        gradient = 2 * (x - TARGET)
        gradient = gradient * min(1.0, 1.5 / np.linalg.norm(gradient))
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        unbiased = first / (1 - 0.9 ** (step + 1)), second / (1 - 0.999 ** (step + 1))
        x = x - rate * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-8)
        decay = min(0.2, (1 + step) / (10 + step))
        average = decay * average + (1 - decay) * x
    np.testing.assert_allclose(result.params["x"], average, rtol=1e-4)
    np.testing.assert_allclose(result.losses, [[np.mean(losses), np.sum((average - TARGET) ** 2)]], rtol=1e-4)


def test_stops_after_as_many_epochs_as_patience_has():
    config = FitConfig(num_steps=100, epoch_steps=10, learning_rate=0.05, patience=3)
    result = fit(jax.random.key(0), START, Worsening(), TARGET, config)
    assert result.losses.shape == (3, 2)
    np.testing.assert_array_equal(result.params["x"], START["x"])
    assert result.best == result.initial == 0.0


def test_without_patience_the_last_weights_are_kept():
    config = FitConfig(num_steps=100, epoch_steps=10, learning_rate=0.05, patience=None)
    result = fit(jax.random.key(0), START, Worsening(), TARGET, config)
    assert result.losses.shape == (10, 2)
    assert np.all(result.params["x"] != START["x"])


@pytest.mark.fault(24)
def test_a_loss_that_is_not_a_number_stops_training_and_keeps_the_best():
    config = FitConfig(num_steps=400, epoch_steps=10, learning_rate=0.05, warmup_steps=10, ema_decay=0.5)
    steps = dataclasses.replace(config, epoch_steps=1)
    with pytest.warns(UserWarning, match="became nan"):
        # Without noise in the loss, epochs of one step take the same way, and their number tells the step.
        step = len(fit(jax.random.key(0), START, Breaking(), TARGET, steps).losses) - 1
    with pytest.warns(UserWarning, match=rf"loss of stage became nan at step {step}\..*best weights"):
        result = fit(jax.random.key(0), START, Breaking(), TARGET, config, name="stage")
    assert result.losses.shape[0] < config.num_epochs
    assert np.isnan(result.losses[-1, 0])
    assert np.all(np.isfinite(result.params["x"]))
    assert result.best == np.nanmin(result.losses[:-1, 1]) < result.initial


def test_a_validation_loss_that_is_not_finite_is_named():
    config = FitConfig(num_steps=20, epoch_steps=10)
    with pytest.warns(UserWarning, match="validation loss of stage became inf by step 10"):
        result = fit(jax.random.key(0), START, BadValidation(), TARGET, config, name="stage")
    np.testing.assert_array_equal(result.params["x"], START["x"])


def test_any_finite_loss_beats_an_unknown_start():
    config = FitConfig(num_steps=40, epoch_steps=10, learning_rate=0.05)
    result = fit(jax.random.key(0), START, UnknownAtFirst(), TARGET, config)
    assert np.isfinite(result.best)
    assert np.any(np.asarray(result.params["x"]) != 0.0)


def test_no_more_steps_than_asked_for():
    """An epoch longer than training is cut: with three steps the average is that of three steps."""
    config = FitConfig(num_steps=3, epoch_steps=50, learning_rate=0.1, warmup_steps=1)
    short = dataclasses.replace(config, epoch_steps=3)
    results = [fit(jax.random.key(0), START, Quadratic(), TARGET, c) for c in (config, short)]
    np.testing.assert_array_equal(results[0].params["x"], results[1].params["x"])


class Recorder:
    def __init__(self) -> None:
        self.started, self.updates, self.closed = [], [], 0

    def __call__(self, name: str, total: int) -> "Recorder":
        self.started.append((name, total))
        return self

    def update(self, done: int, note: str = "") -> None:
        self.updates.append((done, note))

    def close(self) -> None:
        self.closed += 1


def test_progress_is_told_the_total_and_each_epoch():
    recorder = Recorder()
    result = fit(jax.random.key(0), START, Quadratic(0.1), TARGET, QUICK, name="stage", progress=recorder)
    assert recorder.started == [("stage", 400)]
    assert [done for done, _ in recorder.updates] == [100, 200, 300, 400]
    assert recorder.updates[-1][1] == f"loss {result.losses[-1, 0]:.3f}, validation {result.losses[-1, 1]:.3f}"
    assert recorder.closed == 1


@pytest.mark.parametrize("name", ["num_steps", "epoch_steps", "patience"])
def test_counts_must_be_positive(name):
    with pytest.raises(ValueError, match=f"FitConfig.{name} is 0, but must be at least 1"):
        FitConfig(**{name: 0})


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_the_decay_of_the_average_is_a_fraction(decay):
    with pytest.raises(ValueError, match=rf"FitConfig.ema_decay is {decay}, but must lie in \[0, 1\)"):
        FitConfig(ema_decay=decay)


def test_the_schedule_used_by_hand_is_that_of_optax():
    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.1, 1, 3, 0.05)
    np.testing.assert_allclose([schedule(step) for step in range(3)], [0.0, 0.1, 0.075], rtol=1e-5)
