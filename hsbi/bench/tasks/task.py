"""What a benchmark task is, and what all of them share."""

import dataclasses
from collections.abc import Callable, Mapping

import jax
import numpy as np
import numpyro
from jax import Array
from jax.typing import ArrayLike


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A hierarchical model with its exact posterior.

    Attributes:
        name: The task's name.
        model: The NumPyro program, `model(num_sites, y=None)`.
        draw: `draw(key, num_sites)` gives true latents by name and the data of all sites.
        reference: `reference(key, y, num_draws)` gives independent draws from the exact posterior by name, with a
            leading axis of draws.
        global_names: The globals.
        local_names: The locals.
    """

    name: str
    model: Callable[..., None]
    draw: Callable[..., tuple[dict[str, np.ndarray], np.ndarray]]
    reference: Callable[..., dict[str, np.ndarray]]
    global_names: tuple[str, ...]
    local_names: tuple[str, ...]


def draw_from(model: Callable[..., None], key: Array, num_sites: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Run a program once; give its latents by name and the data, its statement `y`."""
    trace = numpyro.handlers.trace(numpyro.handlers.seed(model, key)).get_trace(num_sites)
    values = {name: np.asarray(site["value"]) for name, site in trace.items() if site["type"] == "sample"}
    y = values.pop("y")
    return values, y


def as_data(name: str, y: ArrayLike, event_shape: tuple[int, ...]) -> np.ndarray:
    """Check that data have one event per site."""
    data = np.asarray(y, float)
    if data.ndim != 1 + len(event_shape) or data.shape[1:] != event_shape or not len(data):
        shape = ", ".join(("sites", *map(str, event_shape)))
        raise ValueError(f"Data of task {name!r} have shape {data.shape}, expected ({shape}).")
    return data


def generator(key: Array) -> np.random.Generator:
    """Start NumPy's generator from a JAX key."""
    return np.random.default_rng(np.asarray(jax.random.bits(key, (4,), "uint32")))


def stack(draws: Mapping[str, ArrayLike], names: tuple[str, ...]) -> np.ndarray:
    """Put the marginals of several latents side by side, `[draws, marginals]`."""
    parts = [np.asarray(draws[name], float) for name in names]
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)
