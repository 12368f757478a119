"""Rows on their way through host simulators: what is asked, what came back, and who makes the calls."""

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from hsbi.model.host import Attempt, CallError, HostInputs, HostSpec, Status, attempt

_LOG = logging.getLogger("hsbi")
# A call that has not ended has no status yet.
PENDING = 255
# Rows that are simulated in this process are handed on after about this many seconds.
_PIECE_SECONDS = 0.5
# The first rows are handed on after so many: they show whether the simulator works at all.
_EARLY = (1, 2, 3, 50)


class HostCalls(NamedTuple):
    """Calls of a host simulator that have yet to be made: words of keys and parameters, batch axes first."""

    keys: Any
    params: tuple[Any, ...]


class Work(NamedTuple):
    """Rows whose host calls are to be made.

    Attributes:
        numbers: The rows' numbers, `[n]`.
        values: Latents by name, rows first.
        observations: Observations that are there already.
        calls: The calls of every host simulator, rows first.
    """

    numbers: np.ndarray
    values: dict[str, np.ndarray]
    observations: dict[str, np.ndarray]
    calls: dict[str, HostCalls]

    def take(self, rows: np.ndarray) -> "Work":
        """Select rows by place or by mask."""
        return Work(
            self.numbers[rows],
            {name: value[rows] for name, value in self.values.items()},
            {name: value[rows] for name, value in self.observations.items()},
            {
                name: HostCalls(calls.keys[rows], tuple(value[rows] for value in calls.params))
                for name, calls in self.calls.items()
            },
        )


class Failure(NamedTuple):
    """A simulation that gave no usable output."""

    number: int
    name: str
    status: Status
    error: CallError


class Done(NamedTuple):
    """Rows that are complete.

    Attributes:
        numbers: The rows' numbers, `[n]`.
        values: Latents by name, rows first.
        observations: Observations by name, rows first.
        status: By observation, `[n]`.
        seconds: The time spent on each row by host simulators, `[n]`.
        failures: What went wrong.
    """

    numbers: np.ndarray
    values: dict[str, np.ndarray]
    observations: dict[str, np.ndarray]
    status: dict[str, np.ndarray]
    seconds: np.ndarray
    failures: tuple[Failure, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Host:
    """A host simulator and what its calls must give."""

    fn: Callable[..., Any]
    spec: HostSpec


Count = Callable[[int, bool], None]
"""Called with a number of calls and whether they repeat calls that were lost."""


class Session(Protocol):
    """Calls in progress."""

    def run(self, works: Iterator[Work]) -> Iterator[Done]:
        """Make all calls; rows come back in any order, as they are complete."""
        ...

    def rescue(self) -> list[Done]:
        """Give complete rows that `run` had not handed over when it was broken off."""
        ...

    def close(self) -> None:
        """Stop everything at once."""
        ...


class Caller(Protocol):
    """Where host simulators run."""

    def open(self, hosts: Mapping[str, Host], total_calls: int, count: Count) -> Session:
        """Get ready to call the given simulators about so many times."""
        ...


class Assembly:
    """Collect the results of calls until rows are complete."""

    def __init__(self, work: Work, hosts: Mapping[str, Host]) -> None:
        """Lay out room for the results of all calls of some rows."""
        self.work = work
        number = work.numbers.size
        self.members: dict[str, int] = {}
        self.calls: dict[str, HostCalls] = {}
        self._leads: dict[str, tuple[int, ...]] = {}
        self._status: dict[str, np.ndarray] = {}
        self._values: dict[str, np.ndarray] = {}
        self._specs = {name: hosts[name].spec for name in work.calls}
        self._seconds = np.zeros(number)
        self._errors: dict[int, list[Failure]] = {}
        self._taken = np.zeros(number, bool)
        for name, calls in work.calls.items():
            lead = calls.keys.shape[:-1]
            size = int(np.prod(lead))
            self._leads[name] = lead
            self.members[name] = size // number
            self.calls[name] = HostCalls(
                calls.keys.reshape(size, calls.keys.shape[-1]),
                tuple(value.reshape(size, *value.shape[len(lead) :]) for value in calls.params),
            )
            spec = self._specs[name]
            self._status[name] = np.full(size, PENDING, np.uint8)
            self._values[name] = np.full((size, *spec.event_shape), spec.fill, spec.dtype)

    def put_one(self, name: str, position: int, result: Attempt, seconds: float) -> None:
        """Enter the result of one call."""
        row = position // self.members[name]
        if result.value is not None:
            self._values[name][position] = result.value
        if result.error is not None:
            failure = Failure(int(self.work.numbers[row]), name, result.status, result.error)
            self._errors.setdefault(row, []).append(failure)
        self._seconds[row] += seconds
        # Last, so that an interrupt before it leaves the call to be made.
        self._status[name][position] = result.status

    def put(
        self,
        name: str,
        positions: np.ndarray,
        status: np.ndarray,
        values: np.ndarray,
        seconds: np.ndarray,
        errors: Mapping[int, CallError],
    ) -> None:
        """Enter the results of some calls, `errors` by place among them; calls without a status are passed over."""
        places = np.flatnonzero((status != PENDING) & (self._status[name][positions] == PENDING))
        own = positions[places]
        self._values[name][own] = values[places]
        np.add.at(self._seconds, own // self.members[name], seconds[places])
        for place in places[status[places] != Status.OK]:
            row = int(positions[place] // self.members[name])
            error = errors.get(int(place), CallError("", "the message was lost"))
            failure = Failure(int(self.work.numbers[row]), name, Status(int(status[place])), error)
            self._errors.setdefault(row, []).append(failure)
        self._status[name][own] = status[places]

    @property
    def empty(self) -> bool:
        """Whether every row has been taken."""
        return bool(self._taken.all())

    def take(self) -> Done | None:
        """Give the rows that are complete and were not given before."""
        complete = ~self._taken
        for name, members in self.members.items():
            complete &= np.all(self._status[name].reshape(-1, members) != PENDING, axis=1)
        rows = np.flatnonzero(complete)
        if not rows.size:
            return None
        self._taken[rows] = True
        failed = sorted(row for row in self._errors if complete[row])
        observations = {name: value[rows] for name, value in self.work.observations.items()}
        status: dict[str, np.ndarray] = {}
        for name, lead in self._leads.items():
            values = self._values[name]
            observations[name] = values.reshape(*lead, *values.shape[1:])[rows]
            own = self._status[name].reshape(lead[0], -1)[rows]
            # The first member that failed speaks for the row.
            status[name] = own[np.arange(rows.size), np.argmax(own != Status.OK, axis=1)]
        return Done(
            self.work.numbers[rows],
            {name: value[rows] for name, value in self.work.values.items()},
            observations,
            status,
            self._seconds[rows],
            tuple(failure for row in failed for failure in self._errors.pop(row)),
        )


class CastNotes:
    """Say once for each simulator that its outputs are cast."""

    def __init__(self) -> None:
        """Have said nothing."""
        self._noted: set[str] = set()

    def see(self, spec: HostSpec, dtype: str) -> None:
        """Take note of the type of an output before it was cast; an empty one is unknown."""
        if dtype and spec.name not in self._noted:
            self._noted.add(spec.name)
            if dtype != spec.dtype:
                _LOG.info("The simulator of %r returns %s, which is cast to %s.", spec.name, dtype, spec.dtype)


class InProcess:
    """Make host calls one after another in this process."""

    def open(self, hosts: Mapping[str, Host], total_calls: int, count: Count) -> "InProcessSession":
        """Get ready."""
        return InProcessSession(hosts, count)


class InProcessSession:
    """Host calls being made in this process."""

    def __init__(self, hosts: Mapping[str, Host], count: Count) -> None:
        """Keep what is called and counted."""
        self._hosts, self._count = hosts, count
        self._assembly: Assembly | None = None
        self._inputs: dict[str, HostInputs] = {}
        self._casts = CastNotes()

    def run(self, works: Iterator[Work]) -> Iterator[Done]:
        """Make all calls, row by row."""
        first = True
        for work in works:
            self._assembly = Assembly(work, self._hosts)
            self._inputs = {name: HostInputs(*calls) for name, calls in self._assembly.calls.items()}
            started = time.perf_counter()
            for row in range(work.numbers.size):
                for name in work.calls:
                    self._call_row(self._assembly, name, row)
                early = first and row + 1 in _EARLY
                if early or time.perf_counter() - started > _PIECE_SECONDS:
                    yield from self.rescue()
                    started = time.perf_counter()
            first = False
            yield from self.rescue()

    def _call_row(self, assembly: Assembly, name: str, row: int) -> None:
        host, members = self._hosts[name], assembly.members[name]
        for position in range(row * members, (row + 1) * members):
            self._count(1, False)
            started = time.perf_counter()
            result = attempt(host.fn, host.spec, *self._inputs[name][position])
            assembly.put_one(name, position, result, time.perf_counter() - started)
            if position == 0 and result.dtype is not None:
                self._casts.see(host.spec, result.dtype.name)

    def rescue(self) -> list[Done]:
        """Give the rows that are complete."""
        done = None if self._assembly is None else self._assembly.take()
        return [] if done is None else [done]

    def close(self) -> None:
        """Have nothing to stop."""
