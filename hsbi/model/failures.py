"""What a run says about simulations that failed, and when it gives up."""

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from hsbi.model.calls import Done, Failure
from hsbi.model.host import CallError, Status

# Above this rate of failures nothing should be learned from the rest.
MAX_FAILED = 0.5
# Prior draws that are not finite: above this rate the prior is at fault.
MAX_PRIOR_FAILED = 0.01
# A simulator that fails on all of its first calls is broken, and one that gives nothing finite for this many rows too.
_NUM_FIRST, _NUM_HOPELESS = 3, 50


class SimulationError(RuntimeError):
    """Simulations failed in a way that no run should go on after."""


class Watch:
    """Follow the rows of a run and stop it early where it cannot come to anything."""

    def __init__(self, total: int, shapes: Mapping[str, str], any_ok: bool) -> None:
        """Start watching.

        Args:
            total: The rows of the run.
            shapes: The shapes of one call's parameters, by host simulator.
            any_ok: Whether usable rows are known already.
        """
        self._total, self._shapes = total, shapes
        self._any_ok = any_ok
        self._seen, self._broken = 0, 0
        self._unusable: list[Done] = []
        self._first: Failure | None = None

    @property
    def settled(self) -> bool:
        """Whether the simulator has shown that it works."""
        return self._any_ok

    def see(self, done: Done) -> None:
        """Take note of rows that are complete, and raise where they leave no hope."""
        for failure in done.failures:
            self._first = self._first or failure
            shape = failure.status is Status.SHAPE and not self._any_ok and self._seen == 0
            if failure.error.fatal or shape:
                raise SimulationError(self._explain(failure))
        ok = usable_rows(done.status, done.numbers.size)
        finite = np.ones_like(ok)
        for status in done.status.values():
            finite &= status != Status.NONFINITE
        self._any_ok |= bool(ok.any())
        self._seen += ok.size
        self._broken += int(np.count_nonzero(~ok & finite))
        if self._any_ok:
            self._unusable.clear()
            return
        self._unusable.append(done)
        if self._broken >= min(_NUM_FIRST, self._total) and self._broken == self._seen and self._first is not None:
            raise SimulationError(self._explain(self._first))
        if self._seen >= _NUM_HOPELESS:
            status, values = (
                {name: np.concatenate([getattr(each, kind)[name] for each in self._unusable]) for name in names}
                for kind, names in (("status", done.status), ("values", done.values))
            )
            raise SimulationError(
                f"None of the first {self._seen} simulations gave finite numbers. {summarize(status)} "
                + describe_ranges(values)
            )

    def _explain(self, failure: Failure) -> str:
        error = failure.error
        what = f"{error.kind}: {error.message}" if error.kind else error.message
        shapes = self._shapes.get(failure.name)
        return (
            f"The simulator of {failure.name!r} failed in simulation {failure.number} ({failure.status.name.lower()}): "
            f"{what}{'' if shapes is None else f' (parameter shapes {shapes})'}"
            + (f"\n\n{error.traceback}" if error.traceback else "")
        )


def usable_rows(status: Mapping[str, np.ndarray], number: int) -> np.ndarray:
    """Say which rows have every observation."""
    ok = np.ones(number, bool)
    for own in status.values():
        ok &= own == Status.OK
    return ok


def summarize(status: Mapping[str, np.ndarray]) -> str:
    """Count the failures of each observation by status."""
    parts: list[str] = []
    for name, own in status.items():
        counts = Counter(Status(int(code)).name.lower() for code in own[own != Status.OK])
        if counts:
            listed = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
            share = sum(counts.values()) / own.size
            parts.append(f"{name!r}: {sum(counts.values())} of {own.size} failed ({100 * share:.1f} %; {listed}).")
    return " ".join(parts)


def describe_ranges(values: Mapping[str, np.ndarray]) -> str:
    """Show the ranges that latents were drawn from."""
    ranges = []
    for name, value in values.items():
        finite = np.asarray(value)[np.isfinite(value)]
        ranges.append(f"{name!r} from {finite.min():.4g} to {finite.max():.4g}" if finite.size else f"{name!r} nowhere")
    return f"The prior drew {', '.join(ranges)}. Check the simulator and the prior."


def report(
    status: Mapping[str, np.ndarray],
    values: Mapping[str, np.ndarray],
    failures: Sequence[Failure],
    *,
    stacklevel: int = 4,
) -> None:
    """Warn of failures with their rate and the first traceback; raise where most rows failed."""
    worst = max((np.mean(own != Status.OK) for own in status.values() if own.size), default=0.0)
    if worst == 0.0:
        return
    text = f"Simulations failed. {summarize(status)}"
    first = next((failure for failure in failures if failure.error.kind), next(iter(failures), None))
    if first is not None:
        what = first.error.traceback or f"{first.error.kind} {first.error.message}".strip()
        text += f" The first, simulation {first.number}: {what}"
    if worst > MAX_FAILED:
        raise SimulationError(f"{text.rstrip()}\n{describe_ranges(values)}")
    warnings.warn(text, UserWarning, stacklevel=stacklevel)


def prior_failures(
    numbers: np.ndarray, values: Mapping[str, np.ndarray], names: Sequence[str]
) -> tuple[np.ndarray, tuple[Failure, ...], Counter[str]]:
    """Find rows whose prior draws are not finite.

    Returns:
        A mask of the rows, a failure for each of them and observation, and the number of rows by latent.
    """
    bad = np.zeros(numbers.size, bool)
    culprits = np.full(numbers.size, "", object)
    counts: Counter[str] = Counter()
    for name, value in values.items():
        own = ~np.all(np.isfinite(value), axis=tuple(range(1, value.ndim)))
        counts[name] += int(own.sum())
        culprits[own & ~bad] = name
        bad |= own
    failures = tuple(
        Failure(
            int(numbers[row]),
            name,
            Status.NONFINITE,
            CallError("", f"the prior draw of {culprits[row]!r} is not finite"),
        )
        for row in np.flatnonzero(bad)
        for name in names
    )
    return bad, failures, +counts
