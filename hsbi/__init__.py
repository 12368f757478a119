"""Hierarchical simulation-based inference for NumPyro programs."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hsbi.diagnostics.check import check
    from hsbi.inference.designs import pad
    from hsbi.inference.direct import Direct
    from hsbi.inference.joint import JointConfig
    from hsbi.inference.lf import LF
    from hsbi.inference.pf import PF
    from hsbi.inference.posterior import FactorizedConfig
    from hsbi.inference.saved import load
    from hsbi.inference.surrogate import SurrogateConfig
    from hsbi.mcmc import from_mcmc
    from hsbi.model.simulator import Simulator
    from hsbi.model.structure import Structure
    from hsbi.model.trace import inspect
    from hsbi.simulation.store import Store
    from hsbi.training.fit import FitConfig

__version__ = "0.1.0"
__all__ = [
    "LF",
    "PF",
    "Direct",
    "FactorizedConfig",
    "FitConfig",
    "JointConfig",
    "Simulator",
    "Store",
    "Structure",
    "SurrogateConfig",
    "__version__",
    "check",
    "from_mcmc",
    "inspect",
    "load",
    "pad",
]

# Imported on first use, so that `import hsbi` does not pay for what a script never touches.
_HOMES = {
    "Direct": "hsbi.inference.direct",
    "FactorizedConfig": "hsbi.inference.posterior",
    "FitConfig": "hsbi.training.fit",
    "JointConfig": "hsbi.inference.joint",
    "LF": "hsbi.inference.lf",
    "PF": "hsbi.inference.pf",
    "Simulator": "hsbi.model.simulator",
    "Store": "hsbi.simulation.store",
    "Structure": "hsbi.model.structure",
    "SurrogateConfig": "hsbi.inference.surrogate",
    "check": "hsbi.diagnostics.check",
    "from_mcmc": "hsbi.mcmc",
    "inspect": "hsbi.model.trace",
    "load": "hsbi.inference.saved",
    "pad": "hsbi.inference.designs",
}


_PACKAGES = ("diagnostics", "plots")


def __getattr__(name: str) -> Any:
    """Import a public name from its home on first use (PEP 562)."""
    if name in _PACKAGES:
        return importlib.import_module(f"hsbi.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'hsbi' has no attribute {name!r}; public names are {', '.join(__all__)}.")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
