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
        patience: Epochs without improvement of the validation loss after which training stops.
    """

    num_steps: int = 3000
    epoch_steps: int = 100
    learning_rate: float = 1e-3
    final_fraction: float = 0.01
    warmup_steps: int = 100
    clip_norm: float = 1.0
    weight_decay: float = 0.0
    ema_decay: float = 0.995
    patience: int = 10

    def __post_init__(self) -> None:
        for name in ("num_steps", "epoch_steps", "patience"):
            if getattr(self, name) < 1:
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
        params: The averaged weights with the lowest validation loss.
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


def fit(
    key: Array,
    params: Params,
    objective: Objective,
    data: Any,
    config: FitConfig,
    *,
    name: str = "training",
    progress: Progress = no_progress,
) -> FitResult:
    """Minimize an objective and return the averaged weights that validate best.

    A loss that is not finite stops training, with a warning that gives the step; the best weights so far are kept.

    Args:
        key: A random key.
        params: The weights to start from.
        objective: The losses. Hashable: a second fit with an equal objective and equal shapes compiles nothing.
        data: Passed through to the losses.
        config: Hyperparameters.
        name: What the progress bar calls the stage.
        progress: Called to show progress.
    """
    # The state's buffers are donated, so it must not share any with the caller's weights or with itself.
    state = jax.tree.map(jnp.array, _start(config, params))
    initial = float(_validate(objective, params, data))
    # Any finite loss beats a start whose loss is unknown.
    best, best_params, waited = (math.inf if math.isnan(initial) else initial), params, 0
    losses: list[tuple[float, float]] = []
    length = config.steps_per_epoch
    bar = progress(name, config.num_epochs * length)
    for epoch in range(config.num_epochs):
        state, mean = _run_epoch(objective, config, state, jax.random.fold_in(key, epoch), data)
        train, value = float(mean), float(_validate(objective, state.average, data))
        losses.append((train, value))
        if not (math.isfinite(train) and math.isfinite(value)):
            which, got = ("loss", train) if not math.isfinite(train) else ("validation loss", value)
            warnings.warn(
                f"The {which} of {name} became {got} between steps {epoch * length} and {(epoch + 1) * length}. "
                "Training stopped; the best weights so far are kept.",
                stacklevel=2,
            )
            break
        if value < best:
            best, best_params, waited = value, jax.tree.map(jnp.array, state.average), 0
        else:
            waited += 1
        bar.update((epoch + 1) * length, f"loss {train:.3f}, validation {value:.3f}")
        if waited >= config.patience:
            break
    bar.close()
    return FitResult(best_params, np.asarray(losses).reshape(-1, 2), initial, best)


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
def _validate(objective: Objective, params: Params, data: Any) -> Array:
    return objective.validate(params, data)


@functools.partial(jit, static_argnames="config")
def _start(config: FitConfig, params: Params) -> _State:
    return _State(params, _optimizer(config).init(params), params, jnp.zeros((), jnp.int32))


@functools.partial(jit, static_argnames=("objective", "config"), donate_argnames="state")
def _run_epoch(objective: Objective, config: FitConfig, state: _State, key: Array, data: Any) -> tuple[_State, Array]:
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
    return state, jnp.mean(losses)
