"""Checks of posterior draws from any tool: calibration, coverage and two-sample comparisons on plain arrays."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hsbi.diagnostics.classifier import Classifier
    from hsbi.diagnostics.distance_ranks import data_references, tarp
    from hsbi.diagnostics.distances import mmd, mmd_test, sliced_wasserstein
    from hsbi.diagnostics.rank_tests import ecdf_band, pooled_uniformity, uniformity
    from hsbi.diagnostics.ranks import coverage, sbc_ranks
    from hsbi.diagnostics.two_sample import c2st, c2st_test, lc2st

__all__ = [
    "Classifier",
    "c2st",
    "c2st_test",
    "coverage",
    "data_references",
    "ecdf_band",
    "lc2st",
    "mmd",
    "mmd_test",
    "pooled_uniformity",
    "sbc_ranks",
    "sliced_wasserstein",
    "tarp",
    "uniformity",
]

_HOMES = {
    "Classifier": "classifier",
    "c2st": "two_sample",
    "c2st_test": "two_sample",
    "coverage": "ranks",
    "data_references": "distance_ranks",
    "ecdf_band": "rank_tests",
    "lc2st": "two_sample",
    "mmd": "distances",
    "mmd_test": "distances",
    "pooled_uniformity": "rank_tests",
    "sbc_ranks": "ranks",
    "sliced_wasserstein": "distances",
    "tarp": "distance_ranks",
    "uniformity": "rank_tests",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its home on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(
            f"module 'hsbi.diagnostics' has no attribute {name!r}; public names are {', '.join(__all__)}."
        )
    value = getattr(importlib.import_module(f"hsbi.diagnostics.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
