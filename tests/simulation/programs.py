"""A program with one host simulator, bound by hand without the cost of inspection."""

import functools
from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist

import hsbi
from hsbi.model.program import Program
from hsbi.model.structure import Covariate, Plate, Site, Structure
from tests.model.programs import per_site
from tests.simulation.simulators import Switch

X = np.array([0.5, -1.0, 2.0, 4.0, -3.0])


def switched(switch: Switch, x: Any, y: Any = None) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", len(x)):
        eta = numpyro.sample("eta", dist.Normal(mu, 1.0))
        numpyro.sample("y", hsbi.Simulator(switch, eta, x, host=True, event_shape=(3,)), obs=y)


def switched_program(switch: Switch, x: np.ndarray = X) -> Program:
    """Bind a model whose simulator is the given switch."""
    size = len(x)
    return Program(
        model=functools.partial(switched, switch),
        structure=Structure(
            sites=(
                Site(name="mu", level="global", distribution="Normal"),
                per_site("eta", "local", size),
                per_site("y", "observation", size, (3,)),
            ),
            plates=(Plate(name="site", size=size, dim=-1, role="site"),),
            covariates=(Covariate(path="x", axis=0, shape=(size,)),),
        ),
        arguments={"x": x, "y": None},
        route="resize",
    )
