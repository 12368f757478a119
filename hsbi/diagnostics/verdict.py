r"""From evidence to a verdict, with one false-alarm rate for all of a report.

A report has K lines, each with its own tests. With a false-alarm rate of a for the whole report, a line rejects when
the smallest of its m p-values is below :math:`a / (K m)`, so that by the union bound an exact posterior with an exact
surrogate is trusted on all lines with probability at least :math:`1 - a`. A rejection says that something is off, not
that it matters: errors that are small for certain are trusted, those that are large for certain are called wrong.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

from hsbi.diagnostics.evidence import Evidence

Verdict = Literal["trusted", "doubtful", "wrong", "unknown"]

FALSE_ALARM_RATE = 0.01
# A mean off by a quarter of a standard deviation, and an interval a quarter too wide or narrow, are what one tolerates.
MAX_BIAS, MAX_RATIO = 0.25, 1.25
_ORDER: tuple[Verdict, ...] = ("trusted", "unknown", "doubtful", "wrong")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a report.

    Attributes:
        name: What was checked.
        verdict: `trusted`, `doubtful`, `wrong`, or `unknown` where it could not be checked.
        finding: The number behind it.
        advice: What to do; empty if nothing.
        p_value: The smallest p-value times the number of tests; 1 where there was none.
    """

    name: str
    verdict: Verdict
    finding: str
    advice: str = ""
    p_value: float = 1.0

    def __str__(self) -> str:
        """Show verdict, name, finding and advice."""
        return f"{self.verdict:<9}{self.name}: {self.finding}" + (f" -> {self.advice}" if self.advice else "")


def judge(
    evidence: Sequence[Evidence], num_lines: int, *, max_bias: float = MAX_BIAS
) -> tuple[Verdict, float, Evidence]:
    """Judge one line of a report.

    Args:
        evidence: The tests of the line.
        num_lines: The number of lines K that share the false-alarm rate.
        max_bias: The bias that is tolerated, in standard deviations.

    Returns:
        The verdict, the smallest p-value times the number of tests, and the largest error that was found.
    """
    count = len(evidence)
    rejected = [one for one in evidence if one.p_value * count < FALSE_ALARM_RATE / num_lines]
    p_value = min(1.0, count * min(one.p_value for one in evidence))
    if not rejected:
        return "trusted", p_value, max(_natural(evidence), key=lambda one: _size(one.bias, one.ratio))
    verdicts: list[Verdict] = [_judge_one(one, max_bias) for one in rejected]
    return worse(verdicts), p_value, max(_natural(rejected), key=_least)


def _judge_one(one: Evidence, max_bias: float) -> Verdict:
    if _least(one, max_bias) > 1:
        return "wrong"
    return "trusted" if _most(one, max_bias) < 1 else "doubtful"


def _natural(evidence: Sequence[Evidence]) -> Sequence[Evidence]:
    """Leave out derived quantities where there are others, whose errors say more to a person."""
    return [one for one in evidence if not one.derived] or evidence


def worse(verdicts: Sequence[Verdict]) -> Verdict:
    """Give the worst of several verdicts."""
    return max(verdicts, key=severity)


def severity(verdict: Verdict) -> int:
    """Give the place of a verdict from the best to the worst."""
    return _ORDER.index(verdict)


def _size(bias: float, ratio: float, max_bias: float = MAX_BIAS) -> float:
    """Give the larger error, in units of what is tolerated."""
    return max(abs(bias) / max_bias, abs(np.log(ratio)) / np.log(MAX_RATIO))


def _least(one: Evidence, max_bias: float = MAX_BIAS) -> float:
    """Give the smallest error within the 95 % intervals, in units of what is tolerated."""
    low, high = one.bias_interval
    bias = 0.0 if low < 0 < high else min(abs(low), abs(high))
    ends = (one.ratio_low, one.ratio_high)
    ratio = 1.0 if ends[0] < 1 < ends[1] else min(ends, key=lambda end: abs(np.log(end)))
    return _size(bias, ratio, max_bias)


def _most(one: Evidence, max_bias: float = MAX_BIAS) -> float:
    """Give the largest error within the 95 % intervals, in units of what is tolerated."""
    return max(_size(bias, ratio, max_bias) for bias in one.bias_interval for ratio in (one.ratio_low, one.ratio_high))
