"""Figures of a fitted estimator and of its checks, with matplotlib, which is imported when one is drawn."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hsbi.plots.ecdf import calibration, tarp
    from hsbi.plots.intervals import forest
    from hsbi.plots.losses import training
    from hsbi.plots.narrowing import contraction, recovery
    from hsbi.plots.panels import report
    from hsbi.plots.pooling import shrinkage
    from hsbi.plots.replicates import predictive
    from hsbi.plots.scatter import pairs

__all__ = [
    "calibration",
    "contraction",
    "forest",
    "pairs",
    "predictive",
    "recovery",
    "report",
    "shrinkage",
    "tarp",
    "training",
]

# No module has the name of a function: importing it would hide the function.
_HOMES = {
    "calibration": "ecdf",
    "contraction": "narrowing",
    "forest": "intervals",
    "pairs": "scatter",
    "predictive": "replicates",
    "recovery": "narrowing",
    "report": "panels",
    "shrinkage": "pooling",
    "tarp": "ecdf",
    "training": "losses",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its home on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'hsbi.plots' has no attribute {name!r}; public names are {', '.join(__all__)}.")
    value = getattr(importlib.import_module(f"hsbi.plots.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
