"""Numbers that tell two programs of one structure apart: their densities at fixed values."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from numpyro.distributions import Distribution

from hsbi.model import bijections
from hsbi.model.execution import Visit, execute, stand_in
from hsbi.model.program import Program
from hsbi.model.simulator import find_simulator

# Single precision on another machine; another prior is off by far more.
_RELATIVE, _ABSOLUTE = 1e-3, 1e-4


def probe_densities(program: Program) -> dict[str, float]:
    """Evaluate a number of each site that changes with its distribution, at values that are always the same.

    It is the log density, and for a simulator the sum of its parameters. Two models with equal structures but other
    priors or constants differ in them.
    """

    def probe() -> dict[str, Array]:
        found: dict[str, Array] = {}

        def latent(visit: Visit) -> Array:
            shape = bijections.unconstrained_shape(visit.support, visit.shape)
            raw = jnp.sin(1.0 + 1.7 * jnp.arange(math.prod(shape))).reshape(shape)
            value = bijections.constrain(visit.support, raw)
            found[visit.site.name] = _log_density(visit.fn, value)
            return value

        def observe(visit: Visit) -> Array:
            value, simulator = stand_in(visit), find_simulator(visit.fn)
            if simulator is not None:
                found[visit.site.name] = sum((jnp.sum(array) for array in simulator[0].params), jnp.zeros(()))
            else:
                found[visit.site.name] = _log_density(visit.fn, value)
            return value

        execute(program, jax.random.key(0), latent=latent, observe=observe)
        return found

    return {name: float(value) for name, value in jax.jit(probe)().items()}


def _log_density(fn: Distribution, value: Array) -> Array:
    try:
        return jnp.sum(fn.log_prob(value))
    except NotImplementedError:
        # A distribution that can only be drawn from has nothing to compare.
        return jnp.zeros(())


def list_other_densities(before: dict[str, float], now: dict[str, float]) -> list[str]:
    """List in words the sites whose densities differ by more than rounding."""
    return [
        f"site {name!r}: the log density at a fixed point was {value:.6g}, is {now[name]:.6g}"
        for name, value in before.items()
        if not _same(value, now[name])
    ]


def _same(ours: float, theirs: float) -> bool:
    """Say whether two numbers agree within single precision; what is not finite agrees with itself."""
    if not (math.isfinite(ours) and math.isfinite(theirs)):
        return str(ours) == str(theirs)
    return math.isclose(ours, theirs, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)


def find_simulators(program: Program) -> dict[str, Callable[..., Any]]:
    """Give the functions of all simulators, by observation; none is called."""
    found: dict[str, Callable[..., Any]] = {}

    def observe(visit: Visit) -> Array:
        simulator = find_simulator(visit.fn)
        if simulator is not None:
            found[visit.site.name] = simulator[0].fn
        return stand_in(visit)

    jax.eval_shape(lambda: execute(program, jax.random.key(0), observe=observe).latents)
    return found
