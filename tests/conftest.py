"""Settings that hold for every test."""

import os

# Set before JAX, NumPyro or matplotlib are imported by a test module.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["MPLBACKEND"] = "Agg"
os.environ["TQDM_DISABLE"] = "1"

from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

TESTS = Path(__file__).parent
MAPS, MAX_MAPS = Path("/proc/self/maps"), 15_000
# NumPyro's own distributions and transforms promote ranks (MultivariateNormal, Beta, StudentT, the simplex
# bijection, ...), so the check can hold only where hsbi's code is pure array code.
STRICT_RANK_PACKAGES = frozenset({"flow", "networks", "tokens", "training"})


@pytest.fixture(autouse=True)
def forget_compiled_code() -> Iterator[None]:
    """Drop compiled code when there is much of it.

    Every program holds memory maps, about 7,000 for one inference from start to end, and Linux allows a process 65,530;
    beyond them the compiler aborts.
    """
    yield
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MAX_MAPS:
        jax.clear_caches()


@pytest.fixture(autouse=True)
def strict_ranks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make implicit rank promotion an error in the tests of the pure-array packages."""
    package = request.path.relative_to(TESTS).parts[0]
    if package not in STRICT_RANK_PACKAGES:
        yield
        return
    with jax.numpy_rank_promotion("raise"):
        yield
