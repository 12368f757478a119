"""Hierarchical simulation-based inference for NumPyro programs."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hsbi.model.simulator import Simulator
    from hsbi.model.structure import Structure
    from hsbi.model.trace import inspect

__version__ = "0.1.0"
__all__ = ["Simulator", "Structure", "__version__", "inspect"]

# Imported on first use, so that `import hsbi` does not pay for what a script never touches.
_HOMES = {
    "Simulator": "hsbi.model.simulator",
    "Structure": "hsbi.model.structure",
    "inspect": "hsbi.model.trace",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its home on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'hsbi' has no attribute {name!r}; public names are {', '.join(__all__)}.")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
