"""Hand out host calls in batches of fitting size, take back what came of them, and try again what was lost."""

import collections
import dataclasses
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Protocol

import numpy as np

from hsbi.model.calls import PENDING, Assembly, CastNotes, Count, Done, Host, Work
from hsbi.model.failures import SimulationError
from hsbi.model.host import CallError, HostSpec, Status
from hsbi.simulation.workers import Calls, Outcome

# A batch should last about this long: handing one out costs milliseconds, and one that is lost is run again.
_BATCH_SECONDS = 0.25
# Batches waiting for each worker, so that none is idle.
_DEPTH = 2
# Batches lost one after another, with no call coming to an end, before it is said that workers cannot run at all.
_MAX_LOST = 8


@dataclasses.dataclass(eq=False, kw_only=True)
class Batch:
    """Calls that are handed out together.

    Attributes:
        assembly: Where their results go.
        name: The observation they simulate.
        positions: Their positions among the assembly's calls.
        repeated: Whether they were begun before and lost.
        future: What the backend gave for them.
    """

    assembly: Assembly
    name: str
    positions: np.ndarray
    repeated: bool = False
    future: "Future | None" = None

    @property
    def calls(self) -> Calls:
        """The calls themselves."""
        calls = self.assembly.calls[self.name]
        return Calls(calls.keys, calls.params).take(self.positions)


class Backend(Protocol):
    """What runs batches.

    Attributes:
        workers: About how many run at once.
        patience: Seconds after which batches that are running must be looked after.
    """

    workers: int
    patience: float

    def submit(self, batch: Batch, spec: HostSpec, tries: int) -> Future:
        """Start a batch."""
        ...

    def watch(self, batches: list[Batch]) -> None:
        """Look after batches that are running."""
        ...

    def read(self, batch: Batch, spec: HostSpec, *, final: bool) -> tuple[Outcome, CallError | None]:
        """Give what came of a batch, and why the rest is lost, where it is; `final` when it has ended."""
        ...

    def loses_one(self) -> bool:
        """Say whether a lost batch tells which call was running."""
        ...

    def close(self) -> None:
        """Stop everything at once."""
        ...


class Schedule:
    """A session of host calls that run elsewhere."""

    def __init__(self, hosts: Mapping[str, Host], backend: Backend, total_calls: int, count: Count) -> None:
        """Get ready to make so many calls."""
        self._hosts, self._backend, self._count = hosts, backend, count
        self._calls_left = total_calls
        self._queue: collections.deque[Batch] = collections.deque()
        self._running: list[Batch] = []
        self._assemblies: list[Assembly] = []
        self._pace: dict[str, float] = {}
        self._tries: collections.Counter[tuple[Assembly, str, int]] = collections.Counter()
        self._lost_in_a_row = 0
        self._casts = CastNotes()

    def run(self, works: Iterator[Work]) -> Iterator[Done]:
        """Make all calls; rows come back in any order, as they are complete."""
        while True:
            while len(self._running) < _DEPTH * self._backend.workers:
                batch = self._next_batch(works)
                if batch is None:
                    break
                self._submit(batch)
            if not self._running:
                return
            futures = [batch.future for batch in self._running if batch.future]
            wait(futures, timeout=self._backend.patience, return_when=FIRST_COMPLETED)
            self._backend.watch(self._running)
            for batch in [batch for batch in self._running if batch.future and batch.future.done()]:
                self._finish(batch)
                self._running.remove(batch)
                done = batch.assembly.take()
                if done is not None:
                    yield done
            self._assemblies = [assembly for assembly in self._assemblies if not assembly.empty]

    def _next_batch(self, works: Iterator[Work]) -> Batch | None:
        if not self._queue:
            work = next(works, None)
            if work is None:
                return None
            assembly = Assembly(work, self._hosts)
            self._assemblies.append(assembly)
            for name, calls in assembly.calls.items():
                self._queue.append(Batch(assembly=assembly, name=name, positions=np.arange(calls.keys.shape[0])))
        whole = self._queue.popleft()
        size = self._size(whole.name)
        if whole.positions.size <= size:
            return whole
        self._queue.appendleft(dataclasses.replace(whole, positions=whole.positions[size:]))
        return dataclasses.replace(whole, positions=whole.positions[:size])

    def _size(self, name: str) -> int:
        """Choose the calls of a batch by the time that calls have taken, and by what is left to share out."""
        if name not in self._pace:
            return 1
        share = -(-self._calls_left // (_DEPTH * self._backend.workers))
        return max(1, min(int(_BATCH_SECONDS / max(self._pace[name], 1e-6)), share))

    def _submit(self, batch: Batch) -> None:
        tries = self._tries[batch.assembly, batch.name, int(batch.positions[0])]
        batch.future = self._backend.submit(batch, self._hosts[batch.name].spec, tries)
        self._calls_left = max(0, self._calls_left - batch.positions.size)
        self._running.append(batch)

    def _finish(self, batch: Batch) -> None:
        """Take what came of a batch, and queue again what was lost."""
        outcome, lost = self._backend.read(batch, self._hosts[batch.name].spec, final=True)
        ended = outcome.status != PENDING
        self._casts.see(self._hosts[batch.name].spec, outcome.dtype)
        if ended.any():
            self._lost_in_a_row = 0
        usable = outcome.status == Status.OK
        if usable.any():
            # Until one call has worked, calls go out one by one.
            self._keep_pace(batch.name, float(np.mean(outcome.seconds[usable])))
        begun = int(ended.sum())
        if lost is not None:
            self._lost_in_a_row += 1
            if self._lost_in_a_row > _MAX_LOST:
                raise SimulationError(
                    f"{_MAX_LOST} batches of the simulator of {batch.name!r} were lost one after another: "
                    f"{lost.kind} {lost.message}. Try workers=0 to see what happens."
                )
            begun += self._requeue(batch, outcome, lost)
        self._count(begun, batch.repeated)
        batch.assembly.put(batch.name, batch.positions, outcome.status, outcome.values, outcome.seconds, outcome.errors)

    def _requeue(self, batch: Batch, outcome: Outcome, lost: CallError) -> int:
        """Queue calls that have not ended; a call that was lost twice has failed. Gives the calls that were begun."""
        pending = np.flatnonzero(outcome.status == PENDING)
        if self._backend.loses_one():
            culprits = pending[pending == outcome.current]
        else:
            culprits = pending if pending.size == 1 else pending[:0]
        for place in culprits:
            key = (batch.assembly, batch.name, int(batch.positions[place]))
            self._tries[key] += 1
            timed_out = lost.kind == "TimeoutError"
            if timed_out or self._tries[key] > 1:
                outcome.status[place] = Status.TIMEOUT if timed_out else Status.KILLED
                outcome.errors[int(place)] = lost
            else:
                # Alone, so that nothing else is lost with it.
                self._requeue_part(batch, np.array([place]), repeated=True)
        rest = np.setdiff1d(pending, culprits)
        if rest.size and not self._backend.loses_one():
            # Who was at fault is unknown: smaller and smaller batches find it.
            for part in np.array_split(rest, min(rest.size, 8)):
                self._requeue_part(batch, part, repeated=True)
            return int(pending.size)
        if rest.size:
            self._requeue_part(batch, rest, repeated=batch.repeated)
        return int(culprits.size)

    def _requeue_part(self, batch: Batch, places: np.ndarray, *, repeated: bool) -> None:
        again = Batch(assembly=batch.assembly, name=batch.name, positions=batch.positions[places], repeated=repeated)
        self._calls_left += places.size
        self._queue.appendleft(again)

    def _keep_pace(self, name: str, seconds: float) -> None:
        self._pace[name] = seconds if name not in self._pace else 0.5 * (self._pace[name] + seconds)

    def rescue(self) -> list[Done]:
        """Give complete rows that `run` had not handed over when it was broken off."""
        for batch in self._running:
            outcome, _ = self._backend.read(batch, self._hosts[batch.name].spec, final=False)
            ended = outcome.status != PENDING
            if ended.any():
                self._count(int(ended.sum()), batch.repeated)
                batch.assembly.put(
                    batch.name, batch.positions, outcome.status, outcome.values, outcome.seconds, outcome.errors
                )
        self._running = []
        found = [assembly.take() for assembly in self._assemblies]
        return [done for done in found if done is not None]

    def close(self) -> None:
        """Stop everything at once."""
        self._backend.close()
