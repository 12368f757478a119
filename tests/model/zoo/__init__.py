"""NumPyro models with their structure written down by hand, the measure of `hsbi.inspect`."""

from . import arguments, classics, handlers, plates, refusals, simulators
from .case import Case, Expected, Refusal

CASES: tuple[Case, ...] = (
    *classics.CASES,
    *plates.CASES,
    *handlers.CASES,
    *arguments.CASES,
    *simulators.CASES,
    *refusals.CASES,
)
ACCEPTED = tuple(case for case in CASES if isinstance(case.expected, Expected))
REFUSED = tuple(case for case in CASES if isinstance(case.expected, Refusal))

__all__ = ["ACCEPTED", "CASES", "REFUSED", "Case", "Expected", "Refusal"]
