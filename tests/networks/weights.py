"""Weights for tests of networks, without the cost of compiling their initialization."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import numpy as np


def random_weights(module: nn.Module, *args: Any, seed: int = 0) -> Any:
    """Draw all weights, those that training starts at zero among them, so that an output depends on every input.

    Args:
        module: The module.
        *args: What it is called with; arrays, and anything static.
        seed: The seed.
    """
    rng = np.random.default_rng(seed)
    arrays = [index for index, arg in enumerate(args) if not isinstance(arg, int)]

    def init(*given: Any) -> Any:
        filled = list(args)
        for index, arg in zip(arrays, given, strict=True):
            filled[index] = arg
        return module.init(jax.random.key(0), *filled)

    shapes = jax.eval_shape(init, *(args[index] for index in arrays))

    def draw(path: Any, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        noise = rng.normal(size=leaf.shape)
        if leaf.ndim > 1:
            return (noise / np.sqrt(leaf.shape[0])).astype(np.float32)
        center = 1.0 if "scale" in jax.tree_util.keystr(path) else 0.0
        return (center + 0.2 * noise).astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, shapes)


def quick(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compile without optimizing, as each test runs its function a few times only."""
    settings = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    return jax.jit(function, compiler_options=settings, **options)
