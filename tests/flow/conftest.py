"""Double precision for tests of convergence rates, which single precision would hide."""

import jax
import pytest


@pytest.fixture
def double_precision():
    """Run a test in float64."""
    if hasattr(jax, "enable_x64"):
        enable = jax.enable_x64
    else:
        from jax.experimental import enable_x64 as enable
    with enable(True):
        yield
