"""The lines of a report: what each check found, and what to do about it."""

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np

from hsbi.diagnostics.evidence import Evidence
from hsbi.diagnostics.levels import LevelCheck
from hsbi.diagnostics.observation_check import ObservationCheck
from hsbi.diagnostics.surrogate_check import SurrogateCheck
from hsbi.diagnostics.two_sample import Lc2st
from hsbi.diagnostics.verdict import FALSE_ALARM_RATE, MAX_BIAS, Line, judge

# Called with the number of lines that share the false-alarm rate.
Draft = Callable[[int], Line]

# Observed sites this much farther out than any simulated one, or this much worse fitted than any replicate, are
# strange, however few there are to tell.
_FAR, _VERY_FAR = 1.25, 2.0
# The statistic of lc2st for a bias of half a standard deviation, in excess of its null.
_LARGE_LOCAL = 0.016
_LITTLE = 0.1
_MOST_NAMED = 3


def level_line(name: str, check: LevelCheck, advice: str) -> Draft:
    """Judge one level."""

    def draft(num_lines: int) -> Line:
        verdict, p_value, worst = judge(check.evidence, num_lines)
        finding = f"{worst.describe()}, p = {show_p(p_value)}"
        if check.level != "joint":
            contraction = np.median(check.contraction[check.mask], axis=0)
            finding += f"; contraction {_span(contraction)}, recovery {_span(check.recovery)}"
            idle = [c for c, value in zip(check.columns, contraction, strict=True) if value < _LITTLE]
            if verdict == "trusted" and idle:
                finding += f"; data say little of {', '.join(idle[:_MOST_NAMED])}"
        return Line(
            name=name, verdict=verdict, finding=finding, advice=_unless_trusted(verdict, advice), p_value=p_value
        )

    return draft


def sizes_line(evidence: list[Evidence]) -> Draft:
    """Judge calibration as a function of the number of sites."""

    def draft(num_lines: int) -> Line:
        verdict, p_value, worst = judge(evidence, num_lines)
        advice = _unless_trusted(verdict, "narrow num_sites, or train longer")
        finding = f"{worst.describe()}, p = {show_p(p_value)}"
        return Line(name="by number of sites", verdict=verdict, finding=finding, advice=advice, p_value=p_value)

    return draft


def surrogate_line(check: SurrogateCheck, num_sites: int, num_simulations: int) -> Draft:
    """Judge a surrogate: errors of all sites add up in the globals, so less is tolerated where sites are many."""

    def draft(num_lines: int) -> Line:
        tolerated = MAX_BIAS / math.sqrt(num_sites)
        verdict, p_value, worst = judge(check.evidence, num_lines, max_bias=tolerated)
        finding = f"{worst.describe()}, p = {show_p(p_value)}, {len(check.ranks)} held out"
        if check.near is not None:
            low, high = check.near.bias_interval
            least = 0.0 if low < 0 < high else min(abs(low), abs(high))
            most = max(abs(low), abs(high)) * math.sqrt(num_sites)
            finding += f"; near the data it moves globals by {least * math.sqrt(num_sites):.2f} to {most:.2f} sd"
        wanted = np.clip((worst.bias / tolerated) ** 2 - 1, 1, 9)
        more = f"{_round_up(num_simulations * float(wanted)):,} more simulations, or a wider SurrogateConfig"
        return Line(
            name=f"surrogate of {check.name}",
            verdict=verdict,
            finding=finding,
            advice=_unless_trusted(verdict, more),
            p_value=p_value,
        )

    return draft


def unknown_surrogate_line(name: str) -> Draft:
    """Say that a surrogate could not be checked."""
    return lambda num_lines: Line(
        name=f"surrogate of {name}",
        verdict="unknown",
        finding="no simulations are at hand that it was not trained on",
        advice="pass num_simulations=500 or more",
    )


def observation_line(check: ObservationCheck) -> Draft:
    """Judge whether the observed data are such as were simulated, and whether the posterior fits them."""

    def draft(num_lines: int) -> Line:
        p_values = check.p_values
        p_value = min(1.0, len(p_values) * min(p_values))
        excess = check.distance.max() / max(check.limit[-1], 1e-30)
        strange = p_value < FALSE_ALARM_RATE / num_lines or max(excess, _misfit(check)) > _FAR
        verdict = "trusted" if not strange else "wrong" if excess > _VERY_FAR else "doubtful"
        farthest = int(np.argmax(check.distance))
        finding = (
            f"{check.labels[farthest]} is farthest out, {check.distance[farthest]:.1f} sd (simulated: up to "
            f"{check.limit[-1]:.1f}); fit p = {show_p(check.total_p_value)}, all p = {show_p(p_value)}"
        )
        return Line(
            name="observed data", verdict=verdict, finding=finding, advice=_data_advice(check, strange), p_value=p_value
        )

    return draft


def _misfit(check: ObservationCheck) -> float:
    """Give the misfit of the worst site relative to the largest of all replicates."""
    if check.misfit is None or check.misfit_limit is None:
        return 0.0
    return float(check.misfit.max() / max(check.misfit_limit[-1], 1e-30))


def _data_advice(check: ObservationCheck, strange: bool) -> str:
    if not strange:
        return ""
    if check.outside:
        named = _some_of(check.outside)
        return f"{named} outside what was simulated: check the data, widen the prior, or change the simulator"
    if check.misfits:
        named = _some_of(check.misfits)
        return f"the posterior does not reproduce {named}: check the data, or let the model allow for it"
    if check.total_p_value == min(check.p_values):
        return "the posterior does not reproduce the data: the model may be wrong; see posterior_predictive"
    return "the data as a whole are unlike what the prior and the simulator give: check units and priors"


def _some_of(names: tuple[str, ...]) -> str:
    """List some names and count the others."""
    listed = ", ".join(names[:_MOST_NAMED])
    return listed if len(names) <= _MOST_NAMED else f"{listed} and {len(names) - _MOST_NAMED} more"


def local_line(test: Lc2st) -> Draft:
    """Judge the globals at the observed data.

    Few nulls cannot show small p-values, so the logarithm of the statistic is taken as normal under the null.
    """

    def draft(num_lines: int) -> Line:
        nulls = np.log(np.maximum(test.nulls, 1e-30))
        z = (math.log(max(test.statistic, 1e-30)) - nulls.mean()) / max(nulls.std(ddof=1), 1e-12)
        p_value = max(NormalDist().cdf(-z), 1e-30)
        excess = test.statistic - float(np.mean(test.nulls))
        rejected = p_value < FALSE_ALARM_RATE / num_lines
        verdict = "trusted" if not rejected else "wrong" if excess > _LARGE_LOCAL else "doubtful"
        finding = f"l-C2ST {test.statistic:.4f} (exact: {np.mean(test.nulls):.4f}), p = {show_p(p_value)}"
        advice = _unless_trusted(verdict, "train the posterior longer, or with more simulations near these data")
        return Line(name="globals at the data", verdict=verdict, finding=finding, advice=advice, p_value=p_value)

    return draft


def show_p(p_value: float) -> str:
    """Show a p-value with as many digits as it deserves."""
    return "< 1e-9" if p_value < 1e-9 else f"{p_value:.0e}" if p_value < 0.001 else f"{p_value:.2g}"


def _unless_trusted(verdict: str, advice: str) -> str:
    return "" if verdict == "trusted" else advice


def _span(values: np.ndarray) -> str:
    low, high = np.min(values), np.max(values)
    return f"{low:.2f}" if high - low < 0.005 else f"{low:.2f} to {high:.2f}"


def _round_up(number: float) -> int:
    """Round to one significant digit."""
    unit = 10 ** math.floor(math.log10(max(number, 1)))
    return int(math.ceil(number / unit) * unit)
