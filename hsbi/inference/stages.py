"""Training of the factorized posterior: for each level, location and scale by likelihood, then a flow on the residual.

The globals' location is solved for at the end: it is linear in what the network has learned to see, each data set tells
it one target only, and gradient steps leave it noisy.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hsbi.flow import flow_matching_loss
from hsbi.inference.batch import Batch, Stored, Synthetic
from hsbi.inference.effort import lighten, shorten, single_out
from hsbi.inference.posterior import Level, Posterior, Task, Weights
from hsbi.model.program import Program
from hsbi.networks.densities import add_linear
from hsbi.networks.heads import Gaussian, marginal_scale, robust_loss, whiten
from hsbi.networks.mlp import apply
from hsbi.training import Checkpoint, FitConfig, Progress, fit, jit, no_progress, validate

# Residuals beyond this many scales do not steer training: the far tails of a heavy-tailed prior would drown the rest.
_MAX_RESIDUAL = 10.0
# The location is solved for on one batch for this many that it was trained on.
_STEPS_PER_BATCH = 6
# Relative to unit columns: features of the data repeat each other up to this, in float32 sums.
_RIDGE = 1e-5
# Epochs without improvement after which training on stored data sets stops, unless the configuration says otherwise.
_PATIENCE = 6


class Training(NamedTuple):
    """What a stage of training is given.

    Attributes:
        program: The program.
        posterior: The posterior without the weights to be trained.
        source: Where batches come from.
        held_out: Data sets for validation.
        head: Weights of the first stage, for the second.
        key: The key of the validation's noise.
    """

    program: Program
    posterior: Posterior
    source: Synthetic | Stored
    held_out: Task
    head: Any
    key: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Head:
    """Maximum likelihood of location and scale."""

    level: str
    num_sets: int

    def loss(self, params: Any, key: Array, data: Training) -> Array:
        task = data.posterior.task(data.program, data.source.draw(key, self.num_sets), self.level)
        return self._of_task(params, task, data)

    def validate(self, params: Any, data: Training) -> Array:
        return self._of_task(params, data.held_out, data)

    def _of_task(self, params: Any, task: Task, data: Training) -> Array:
        _, gaussian = _apply(data.posterior.level(self.level), params, task)
        losses = robust_loss(gaussian, task.target, _MAX_RESIDUAL)
        return jnp.sum(losses * task.mask) / jnp.sum(task.mask)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Flow:
    """Flow matching on the residual."""

    level: str
    num_sets: int

    def loss(self, params: Any, key: Array, data: Training) -> Array:
        draw_key, noise_key = jax.random.split(key)
        task = data.posterior.task(data.program, data.source.draw(draw_key, self.num_sets), self.level)
        return self._of_task(params, task, data, noise_key)

    def validate(self, params: Any, data: Training) -> Array:
        return self._of_task(params, data.held_out, data, data.key)

    def _of_task(self, params: Any, task: Task, data: Training, key: Array) -> Array:
        level = data.posterior.level(self.level)
        context, gaussian = _apply(level, data.head, task)
        residual = whiten(gaussian, task.target)
        rows = residual.reshape(-1, level.dim)
        mask = task.mask.reshape(-1) * jnp.all(jnp.abs(rows) < _MAX_RESIDUAL, axis=-1)
        velocity = level.velocity(params, context.reshape(rows.shape[0], -1))
        return flow_matching_loss(key, velocity, rows, mask=mask).mean


def _apply(level: Level, params: Any, task: Task) -> tuple[Array, Gaussian]:
    extra = () if task.relative is None else (task.relative,)
    return apply(level.net, params, task.features, *extra)


def fit_posterior(
    key: Array,
    program: Program,
    posterior: Posterior,
    source: Synthetic | Stored,
    held_out: Batch,
    *,
    progress: Progress = no_progress,
    checkpoint: Checkpoint | None = None,
) -> tuple[Posterior, dict[str, np.ndarray]]:
    """Train both levels.

    Args:
        key: A random key.
        program: The program.
        posterior: The posterior without weights.
        source: Where batches come from.
        held_out: Data sets for validation.
        progress: Called to show progress.
        checkpoint: Where the states of training are kept.

    Returns:
        The posterior with weights, and the losses by epoch of each stage.
    """
    losses: dict[str, np.ndarray] = {}
    num_sites = held_out.index.shape[1]
    num_tokens = num_sites * max(shape.num_tokens for shape in posterior.view.shapes)
    posterior = lighten(posterior, num_tokens)
    config = posterior.config
    trained: dict[str, Weights | None] = {}
    watch = {"progress": progress, "checkpoint": checkpoint}
    for number, level in enumerate(("global", "local")):
        modules = posterior.level(level)
        if modules.dim == 0:
            trained[level] = None
            continue
        keys = jax.random.split(jax.random.fold_in(key, number), 5)
        plans = [_for_source(plan, source) for plan in (config.head, config.flow)]
        if level == "global":
            plans = [shorten(plan, config, num_tokens) for plan in plans]
        elif (few := single_out(source, config, num_sites, num_tokens)) is not None:
            num_tokens = num_tokens * few.num_sites[1] // num_sites
            num_sets = held_out.index.shape[0] * (num_sites // few.num_sites[1])
            source, held_out = few, _draw(few, jax.random.fold_in(keys[4], 1), num_sets)
        task = _make_task(program, posterior, held_out, level)
        data = Training(program, posterior, source, task, None, keys[4])
        start_head, start_flow = _initialize(modules, keys[0], jax.tree.map(lambda array: array[:1], task))
        size = config.num_sets(num_tokens, level)
        name = f"posterior of {level}s"
        stage = _Head(level=level, num_sets=size)
        head = fit(keys[1], start_head, stage, data, plans[0], name=f"{name}: location, scale", **watch)
        weights = head.params
        if level == "global" and isinstance(source, Synthetic):
            weights = _solve_location(keys[3], modules, weights, data, size, plans[0].num_steps)
        data = data._replace(head=weights)
        flow = fit(
            keys[2], start_flow, _Flow(level=level, num_sets=size), data, plans[1], name=f"{name}: flow", **watch
        )
        trained[level] = Weights(weights, flow.params)
        losses[f"{level}s: location, scale"], losses[f"{level}s: flow"] = head.losses, flow.losses
    fitted = dataclasses.replace(posterior, global_weights=trained["global"], local_weights=trained["local"])
    return fitted, losses


def _for_source(config: FitConfig, source: Synthetic | Stored) -> FitConfig:
    """Stop early where data sets are finitely many and could be overfitted."""
    if isinstance(source, Stored) and config.patience is None:
        return dataclasses.replace(config, patience=_PATIENCE)
    return config


def _solve_location(key: Array, modules: Level, weights: Any, data: Training, num_sets: int, num_steps: int) -> Any:
    """Solve for a linear change of the globals' location by weighted least squares; kept if it validates better."""
    num_batches = max(1, num_steps // _STEPS_PER_BATCH)
    gram, moment = _sum_normal_equations(modules, num_sets, num_batches, weights, key, data)
    gram, moment = np.asarray(gram, np.float64), np.asarray(moment, np.float64)
    length = np.sqrt(np.diagonal(gram, axis1=1, axis2=2)) + 1e-12
    unit = gram / (length[:, :, None] * length[:, None, :]) + _RIDGE * np.eye(gram.shape[-1])
    change = np.linalg.solve(unit, (moment / length)[..., None])[..., 0] / length
    solved = add_linear(weights, jnp.asarray(change.T, jnp.float32))
    stage = _Head(level=modules.level, num_sets=num_sets)
    before, after = (float(validate(stage, candidate, data)) for candidate in (weights, solved))
    return solved if after < before else weights


@functools.partial(jit, static_argnames=("modules", "num_sets", "num_batches"))
def _sum_normal_equations(
    modules: Level, num_sets: int, num_batches: int, weights: Any, key: Array, data: Training
) -> tuple[Array, Array]:
    """Sum X^T W X and X^T W r over fresh data sets for every global, `[d, p, p]` and `[d, p]`."""

    def add(total: tuple[Array, Array], key: Array) -> tuple[tuple[Array, Array], None]:
        task = data.posterior.task(data.program, data.source.draw(key, num_sets), modules.level)
        context, gaussian = _apply(modules, weights, task)
        design = jnp.concatenate([context, jnp.ones((num_sets, 1), context.dtype)], axis=-1)
        scale = marginal_scale(gaussian)
        residual = (task.target - gaussian.loc) / scale
        # Huber's weights, so that the solution agrees with the loss that is trained.
        precision = task.mask[:, None] * jnp.minimum(1.0, _MAX_RESIDUAL / jnp.abs(residual)) / scale**2
        gram = jnp.einsum("ni,nj,nd->dij", design, design, precision)
        moment = jnp.einsum("ni,nd->di", design, precision * residual * scale)
        return (total[0] + gram, total[1] + moment), None

    size = jax.eval_shape(lambda: _apply(modules, weights, data.held_out)[0]).shape[-1] + 1
    start = (jnp.zeros((modules.dim, size, size)), jnp.zeros((modules.dim, size)))
    return jax.lax.scan(add, start, jax.random.split(key, num_batches))[0]


_draw = jit(lambda source, key, num_sets: source.draw(key, num_sets), static_argnums=2)


@functools.partial(jit, static_argnames="level")
def _make_task(program: Program, posterior: Posterior, batch: Batch, level: str) -> Task:
    return posterior.task(program, batch, level)


@functools.partial(jit, static_argnames="modules")
def _initialize(modules: Level, key: Array, task: Task) -> tuple[Any, Any]:
    head_key, flow_key = jax.random.split(key)
    extra = () if task.relative is None else (task.relative,)
    head = modules.net.init(head_key, task.features, *extra)
    context, gaussian = apply(modules.net, head, task.features, *extra)
    return head, modules.field.init(flow_key, gaussian.loc, jnp.zeros(()), context)
