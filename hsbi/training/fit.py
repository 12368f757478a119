"""Train parameters by stochastic gradient descent: epochs inside one scan, averaged weights, early stopping."""

import dataclasses
import functools
import math
import warnings
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from hsbi.training.checkpoint import Checkpoint, Numbers, describe_key
from hsbi.training.compile import jit
from hsbi.training.progress import Progress, no_progress

Params = Any

# Early in training the average follows the weights closely: its decay after n steps is at most (1 + n) / (10 + n).
_EMA_WARMUP = 10.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitConfig:
    """Hyperparameters of a training stage.

    Attributes:
        num_steps: The most gradient steps.
        epoch_steps: Steps between two validations, at most `num_steps`; they run inside one scan.
        learning_rate: The peak learning rate, after a linear warm-up and before a cosine decay.
        final_fraction: The learning rate at the end as a fraction of the peak.
        warmup_steps: Steps of the warm-up.
        clip_norm: The largest global norm of a gradient.
        weight_decay: Decoupled weight decay.
        ema_decay: Decay of the exponential moving average of the weights, which is what is validated and returned.
        patience: Epochs without improvement of the validation loss after which training stops, with the weights that
            validate best. None trains to the end and keeps the last weights: right where every batch is fresh, so that
            nothing can be overfitted and the lowest validation loss is only the luckiest.
    """

    num_steps: int = 3000
    epoch_steps: int = 100
    learning_rate: float = 1e-3
    final_fraction: float = 0.01
    warmup_steps: int = 100
    clip_norm: float = 1.0
    weight_decay: float = 0.0
    ema_decay: float = 0.995
    patience: int | None = 10

    def __post_init__(self) -> None:
        for name in ("num_steps", "epoch_steps", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"FitConfig.{name} is {getattr(self, name)}, but must be at least 1.")
        if not 0.0 <= self.ema_decay < 1.0:
            raise ValueError(f"FitConfig.ema_decay is {self.ema_decay}, but must lie in [0, 1).")

    @property
    def num_epochs(self) -> int:
        """The most epochs."""
        return max(1, self.num_steps // self.epoch_steps)

    @property
    def steps_per_epoch(self) -> int:
        """The steps of an epoch, no more than there are in all."""
        return min(self.epoch_steps, self.num_steps)


class Objective(Protocol):
    """What a stage minimizes: a hashable object, so that equal stages share one compiled step."""

    def loss(self, params: Params, key: Array, data: Any) -> Array:
        """Give the training loss of a batch drawn with the key."""
        ...

    def validate(self, params: Params, data: Any) -> Array:
        """Give the validation loss, always with the same data and noise."""
        ...


class FitResult(NamedTuple):
    """What training gives.

    Attributes:
        params: The averaged weights with the lowest validation loss; the last ones without `patience`.
        losses: Training and validation loss by epoch, `[num_epochs, 2]`.
        initial: The validation loss before training.
        best: The lowest validation loss.
    """

    params: Params
    losses: np.ndarray
    initial: float
    best: float


class _State(NamedTuple):
    params: Params
    optimizer: Any
    average: Params
    step: Array


class _Loop(NamedTuple):
    """All that an epoch changes."""

    state: _State
    best_params: Params
    numbers: Numbers


def fit(
    key: Array,
    params: Params,
    objective: Objective,
    data: Any,
    config: FitConfig,
    *,
    name: str = "training",
    progress: Progress = no_progress,
    checkpoint: Checkpoint | None = None,
) -> FitResult:
    """Minimize an objective and return the averaged weights that validate best, or the last without `patience`.

    A loss that is not finite stops training, with a warning that gives the step; the best weights so far are kept.

    Args:
        key: A random key.
        params: The weights to start from.
        objective: The losses. Hashable: a second fit with an equal objective and equal shapes compiles nothing.
        data: Passed through to the losses.
        config: Hyperparameters.
        name: What the progress bar calls the stage.
        progress: Called to show progress.
        checkpoint: Where states are kept, so that a fit that was killed goes on, with the same result bit by bit.
    """
    stage = None if checkpoint is None else checkpoint.stage(name, {"key": describe_key(key), **vars(config)})
    # The state's buffers are donated, so it must not share any with the caller's weights or with itself.
    state = jax.tree.map(jnp.array, _start(config, params))
    kept = None if stage is None else stage.read((state, params), params)
    if kept is not None and kept[0]:
        _warn_unless_finite(name, kept[2], config.steps_per_epoch)
        return _result(kept[1], kept[2])
    if kept is not None:
        (state, best_params), numbers = kept[1:]
        loop = _Loop(state, best_params, numbers)
    else:
        initial = float(validate(objective, params, data))
        # Any finite loss beats a start whose loss is unknown.
        best = math.inf if math.isnan(initial) else initial
        loop = _Loop(state, params, Numbers(np.zeros((0, 2)), initial, best, 0, -1))
    length = config.steps_per_epoch
    bar = progress(name, config.num_epochs * length)
    for epoch in range(len(loop.numbers.losses), config.num_epochs):
        loop = _advance(loop, objective, config, jax.random.fold_in(key, epoch), data)
        train, value = loop.numbers.losses[-1]
        if _warn_unless_finite(name, loop.numbers, length):
            break
        bar.update((epoch + 1) * length, f"loss {train:.3f}, validation {value:.3f}")
        if config.patience is not None and loop.numbers.waited >= config.patience:
            break
        if stage is not None and stage.is_due():
            stage.write(loop[:2], loop.numbers)
    bar.close()
    if stage is not None:
        stage.write(loop.best_params, loop.numbers, finished=True)
    return _result(loop.best_params, loop.numbers)


def _advance(loop: _Loop, objective: Objective, config: FitConfig, key: Array, data: Any) -> _Loop:
    """Train for an epoch, validate, and keep the weights if they are the best so far."""
    state, mean, broken = _run_epoch(objective, config, loop.state, key, data)
    train, value = float(mean), float(validate(objective, state.average, data))
    numbers = loop.numbers._replace(losses=np.concatenate([loop.numbers.losses, [[train, value]]]), broken=int(broken))
    if math.isfinite(train) and math.isfinite(value) and (config.patience is None or value < numbers.best):
        best = min(value, numbers.best)
        return _Loop(state, jax.tree.map(jnp.array, state.average), numbers._replace(best=best, waited=0))
    return _Loop(state, loop.best_params, numbers._replace(waited=numbers.waited + 1))


def _warn_unless_finite(name: str, numbers: Numbers, length: int) -> bool:
    """Warn if the last epoch has no finite loss, and say so."""
    losses = numbers.losses
    if losses.size == 0 or np.all(np.isfinite(losses[-1])):
        return False
    train, value = losses[-1]
    if numbers.broken >= 0:
        what = f"The loss of {name} became {train} at step {(len(losses) - 1) * length + numbers.broken}"
    else:
        which, got = ("validation loss", value) if math.isfinite(train) else ("mean loss", train)
        what = f"The {which} of {name} became {got} by step {len(losses) * length}"
    warnings.warn(
        f"{what}. Training stopped; the best weights so far are kept.",
        stacklevel=3,
    )
    return True


def _result(params: Params, numbers: Numbers) -> FitResult:
    return FitResult(params, numbers.losses, numbers.initial, numbers.best)


def _optimizer(config: FitConfig) -> optax.GradientTransformation:
    schedule = optax.warmup_cosine_decay_schedule(
        0.0,
        config.learning_rate,
        min(config.warmup_steps, config.num_steps // 2),
        max(config.num_steps, 1),
        config.learning_rate * config.final_fraction,
    )
    return optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        optax.adamw(schedule, weight_decay=config.weight_decay),
    )


@functools.partial(jit, static_argnames="objective")
def validate(objective: Objective, params: Params, data: Any) -> Array:
    """Give the validation loss, compiled once for equal objectives and shapes."""
    return objective.validate(params, data)


@functools.partial(jit, static_argnames="config")
def _start(config: FitConfig, params: Params) -> _State:
    return _State(params, _optimizer(config).init(params), params, jnp.zeros((), jnp.int32))


@functools.partial(jit, static_argnames=("objective", "config"), donate_argnames="state")
def _run_epoch(
    objective: Objective, config: FitConfig, state: _State, key: Array, data: Any
) -> tuple[_State, Array, Array]:
    """Make the steps of an epoch; gives the mean loss, and the first step whose loss is not finite, or -1."""
    optimizer = _optimizer(config)

    def step(state: _State, key: Array) -> tuple[_State, Array]:
        loss, gradient = jax.value_and_grad(objective.loss)(state.params, key, data)
        update, optimizer_state = optimizer.update(gradient, state.optimizer, state.params)
        params = optax.apply_updates(state.params, update)
        count = state.step.astype(jnp.float32)
        decay = jnp.minimum(config.ema_decay, (1.0 + count) / (_EMA_WARMUP + count))
        average = jax.tree.map(lambda old, new: decay * old + (1.0 - decay) * new, state.average, params)
        return _State(params, optimizer_state, average, state.step + 1), loss

    state, losses = jax.lax.scan(step, state, jax.random.split(key, config.steps_per_epoch))
    broken = ~jnp.isfinite(losses)
    return state, jnp.mean(losses), jnp.where(jnp.any(broken), jnp.argmax(broken), -1)
