"""Methods of the benchmark behind one interface: train once for a task, then draw given any observation.

Methods differ by class and configuration only. `scale` names the settings of those whose published ones do not finish
on a CPU; what a method was trained with is part of every row.
"""

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
from hsbi.inference.direct import Direct
from hsbi.inference.joint import JointConfig
from hsbi.inference.lf import LF
from hsbi.inference.pf import PF
from hsbi.inference.posterior import FactorizedConfig
from hsbi.inference.surrogate import SurrogateConfig
from hsbi.training import FitConfig

_SMALL = FitConfig(num_steps=3000, epoch_steps=100, learning_rate=1e-3, patience=None)
_BRIEF = FitConfig(num_steps=40, epoch_steps=20, patience=None)
# Settings of the joint posterior; `full` is what was published.
_JOINT: dict[str, JointConfig] = {
    "full": JointConfig(),
    "small": JointConfig(width=64, heads=4, batch_size=64, num_ode_steps=16, fit=_SMALL),
    "brief": JointConfig(width=16, heads=2, batch_size=16, num_ode_steps=4, fit=_BRIEF),
}
_FACTORIZED: dict[str, FactorizedConfig] = {
    "full": FactorizedConfig(),
    "brief": FactorizedConfig(width=16, batch_size=16, head=_BRIEF, flow=_BRIEF),
}
_SURROGATE: dict[str, SurrogateConfig] = {
    "full": SurrogateConfig(),
    "brief": SurrogateConfig(width=16, correction=_BRIEF, flow=_BRIEF),
}
SCALES = tuple(_JOINT)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
    """An inference class and how its configuration departs from the published or default one.

    Attributes:
        kind: The class.
        joint: Changes of `JointConfig` by field; None for methods with the factorized posterior.
    """

    kind: type[Inference]
    joint: Mapping[str, Any] | None = None

    def scale(self, scale: str) -> str:
        """Give the name of the settings that apply: factorized posteriors are affordable at full scale."""
        return "full" if self.joint is None and scale == "small" else scale

    def make(self, task: Task, budget: int, scale: str) -> Inference:
        """Make an estimator that is not trained yet."""
        scale = self.scale(scale)
        if self.joint is None:
            configs: dict[str, Any] = {"posterior_config": _FACTORIZED[scale]}
        else:
            configs = {"posterior_config": dataclasses.replace(_JOINT[scale], **self.joint)}
        if self.kind is LF:
            configs["surrogate_config"] = _SURROGATE["brief" if scale == "brief" else "full"]
        make: Any = self.kind
        return make(task.model, num_simulations=budget, observed=("y",), progress=False, **configs)


METHODS: dict[str, Method | None] = {
    "reference": None,
    "lf": Method(kind=LF),
    "direct": Method(kind=Direct),
    "pf": Method(kind=PF),
    "tfmpe": Method(kind=LF, joint={}),
    "no-grouping": Method(kind=LF, joint={"grouping": False}),
    "joint": Method(kind=LF, joint={"shared": True}),
    "mlp": Method(kind=LF, joint={"attention": False, "width": 256}),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained:
    """A method that is ready to draw.

    Attributes:
        sample: `sample(key, y, num_draws)` gives draws by latent.
        simulator_calls: Single-site simulations that were made.
        seconds: Seconds of simulations and training, compilation included.
        settings: What the method was trained with, plain values.
    """

    sample: Callable[[Array, np.ndarray, int], Mapping[str, Any]]
    simulator_calls: int
    seconds: float
    settings: dict[str, Any]


def effective_scale(method: str, scale: str) -> str:
    """Give the scale that a method runs at when asked for one."""
    chosen = METHODS[method]
    return "full" if chosen is None else chosen.scale(scale)


def train(key: Array, method: str, task: Task, *, num_sites: int, budget: int, scale: str = "full") -> Trained:
    """Train a method for a task.

    Args:
        key: A random key.
        method: The method's name, one of `METHODS`.
        task: The task.
        num_sites: Number of sites.
        budget: Number of single-site simulations allowed.
        scale: The name of the settings, one of `SCALES`.

    Returns:
        The method, ready to draw.
    """
    chosen = METHODS[method]
    if chosen is None:
        return Trained(sample=task.reference, simulator_calls=0, seconds=0.0, settings={})
    estimator = chosen.make(task, budget, scale)
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
