from collections.abc import Iterator

import jax
import numpy as np
import pytest

from hsbi.model.program import Program
from hsbi.model.simulate import Simulations, simulate_sites
from tests.simulation.programs import switched_program
from tests.simulation.simulators import Switch

NUM = 200
KEY = jax.random.key(1)


@pytest.fixture(scope="session")
def _switch() -> Switch:
    return Switch()


@pytest.fixture
def switch(_switch: Switch) -> Iterator[Switch]:
    """The simulator of `program`, which behaves well unless it is told otherwise."""
    _switch.set("well")
    yield _switch
    _switch.set("well")


@pytest.fixture(scope="session")
def program(_switch: Switch) -> Program:
    return switched_program(_switch)


@pytest.fixture(scope="session")
def reference(_switch: Switch, program: Program) -> Simulations:
    """What 200 simulations give in this process."""
    _switch.set("well")
    return simulate_sites(program, KEY, NUM)


@pytest.fixture(scope="session")
def above(reference: Simulations):
    """Give the threshold of eta that a number of the 200 simulations exceed, not all of the first three."""

    def threshold(number: int) -> float:
        eta = np.sort(np.asarray(reference.values["eta"], float))
        value = float(0.5 * (eta[-number] + eta[-number - 1]))
        assert np.any(np.asarray(reference.values["eta"])[:3] < value)
        return value

    return threshold
