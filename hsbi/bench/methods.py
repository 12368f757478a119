"""Methods of the benchmark behind one interface: train once for a task, then draw given any observation."""

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hsbi.bench.tasks.task import Task
from hsbi.inference.base import Inference
from hsbi.inference.lf import LF


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained:
    """A method that is ready to draw.

    Attributes:
        sample: `sample(key, y, num_draws)` gives draws by latent.
        simulator_calls: Single-site simulations that were made.
        seconds: Seconds of training, simulations and compilation included.
        settings: What the method was trained with, plain values.
    """

    sample: Callable[[Array, np.ndarray, int], Mapping[str, Any]]
    simulator_calls: int
    seconds: float
    settings: dict[str, Any]


def train(key: Array, method: str, task: Task, *, num_sites: int, budget: int, scale: str = "full") -> Trained:
    """Train a method for a task.

    Args:
        key: A random key.
        method: The method's name, one of `METHODS`.
        task: The task.
        num_sites: Number of sites.
        budget: Number of single-site simulations allowed.
        scale: The name of the settings.

    Returns:
        The method, ready to draw.
    """
    if method == "reference":
        return Trained(sample=task.reference, simulator_calls=0, seconds=0.0, settings={})
    estimator = METHODS[method](task, budget, scale)
    simulate_key, fit_key = jax.random.split(key)
    started = time.perf_counter()
    estimator.simulate(simulate_key, num_sites)
    estimator.fit(fit_key)
    seconds = time.perf_counter() - started

    def sample(key: Array, y: np.ndarray, num_draws: int) -> Mapping[str, Any]:
        return estimator.sample(key, num_sites, y=jnp.asarray(y), num_samples=num_draws)

    names = ("surrogate_config", "posterior_config")
    configs = {name: dataclasses.asdict(getattr(estimator, name)) for name in names if hasattr(estimator, name)}
    settings = {"class": type(estimator).__name__, **configs, "timings": dict(estimator.timings)}
    return Trained(
        sample=sample, simulator_calls=sum(estimator.ledger.counts.values()), seconds=seconds, settings=settings
    )


def _lf(task: Task, budget: int, scale: str) -> Inference:
    return LF(task.model, num_simulations=budget, observed=("y",), progress=False)


METHODS: dict[str, Callable[[Task, int, str], Inference]] = {"lf": _lf}
NAMES = ("reference", *METHODS)
