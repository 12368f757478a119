"""Run a program many times in bounded memory: make host calls, count every call, keep rows as they are complete."""

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from hsbi.model.calls import Caller, Done, Failure, Host, InProcess, Work
from hsbi.model.counts import find_fractions, whole_below
from hsbi.model.failures import (
    MAX_PRIOR_FAILED,
    SimulationError,
    Watch,
    prior_failures,
    report,
    usable_rows,
)
from hsbi.model.host import CallError, HostSpec, Status
from hsbi.model.rows import Plan, Row, chunk
from hsbi.model.structure import Structure
from hsbi.model.trace import canonicalize

if TYPE_CHECKING:
    from hsbi.simulation.ledger import Ledger

Progress = Callable[[int, int, str], None]
"""Called with the rows done, their total, and a note on throughput and failures."""

_ALIGNMENT = 64
# Rows are held back from the shelf until one is usable, or so many have come.
_NUM_HELD = 50


class Shelf(Protocol):
    """Where complete rows are kept."""

    def restore(self, total: int) -> Iterator[Done]:
        """Give the rows that are there, of the first `total`."""
        ...

    def save(self, done: Done, sites: np.ndarray | None) -> None:
        """Take complete rows and the sites they simulate, to be written soon."""
        ...

    def flush(self) -> None:
        """Write what was taken."""
        ...

    @property
    def place(self) -> str:
        """Say where that is."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """How rows are run and counted.

    Attributes:
        plan: What the program means for its simulators.
        structure: The structure that rows have.
        ledger: Where calls are counted.
        phase: The phase they are counted under.
        progress: Called with the rows done, their total, and a note.
        chunk_size: The most rows that run at once.
        caller: Where host simulators run.
        shelf: Where rows are kept as they are complete, or None.
        sites: The program's site that each row simulates, or None where rows have all sites.
    """

    plan: Plan
    structure: Structure
    ledger: "Ledger | None"
    phase: str
    progress: Progress | None
    chunk_size: int
    caller: Caller = dataclasses.field(default_factory=InProcess)
    shelf: Shelf | None = None
    sites: np.ndarray | None = None

    def count(self, calls: int, repeated: bool = False) -> None:
        """Count calls that are about to be made; those that repeat lost ones are no part of the budget."""
        if self.ledger is not None and calls:
            self.ledger.add(f"{self.phase}: repeated" if repeated else self.phase, calls)


class Rows(NamedTuple):
    """All rows of a run: values and observations in canonical layout, and the status of each observation."""

    values: dict[str, np.ndarray]
    observations: dict[str, np.ndarray]
    status: dict[str, np.ndarray]
    failures: tuple[Failure, ...]


class _Collector:
    """Put complete rows where they belong, tell the shelf, and watch for failures."""

    def __init__(self, total: int, job: Job) -> None:
        self.total, self.job = total, job
        self.known = np.zeros(total, bool)
        self._arrays: dict[str, dict[str, np.ndarray]] = {}
        self._failures: list[Failure] = []
        self._held: list[Done] = []
        self._failed, self._new, self._started = 0, 0, time.perf_counter()
        self.prior_counts: Counter[str] = Counter()
        self._shapes = {name: str(tuple(simulator.param_event_shapes)) for name, simulator in job.plan.hosts.items()}
        self.watch = Watch(total, self._shapes, False)

    def restore(self) -> None:
        """Take the rows that are on the shelf."""
        assert self.job.shelf is not None
        any_ok = False
        for done in self.job.shelf.restore(self.total):
            self._enter(done)
            any_ok |= bool(usable_rows(done.status, done.numbers.size).any())
        self.watch = Watch(self.total, self._shapes, any_ok)
        restored = int(self.known.sum())
        if self.job.ledger is not None and restored:
            self.job.ledger.restore(self.job.phase, restored * self.job.structure.num_sites * self.job.plan.calls)
        if self.job.progress is not None and restored:
            self.job.progress(restored, self.total, f"{restored} from the store")

    def add(self, done: Done) -> None:
        """Take rows that are newly complete."""
        self._new += done.numbers.size
        self.watch.see(done)
        check_counts(self.job.plan, done)
        self._enter(done)
        self._held.append(done)
        if self.watch.settled or self._new > _NUM_HELD:
            # Rows of a simulator that never worked are not kept: it will be repaired and run again.
            self.save()
        if self.job.progress is not None:
            rate = self._new / max(time.perf_counter() - self._started, 1e-9)
            note = f"{rate:.3g}/s" + (f", {self._failed} failed" if self._failed else "")
            self.job.progress(int(self.known.sum()), self.total, note)

    def save(self) -> None:
        """Hand on what was held back."""
        if self.job.shelf is not None:
            for done in self._held:
                sites = self.job.sites
                self.job.shelf.save(done, None if sites is None else sites[done.numbers])
        self._held = []

    def _enter(self, done: Done) -> None:
        self._failures += done.failures
        self._failed += int(np.count_nonzero(~usable_rows(done.status, done.numbers.size)))
        self.known[done.numbers] = True
        for kind in ("values", "observations", "status"):
            arrays = self._arrays.setdefault(kind, {})
            for name, value in getattr(done, kind).items():
                if name not in arrays:
                    arrays[name] = _aligned_zeros((self.total, *value.shape[1:]), value.dtype)
                arrays[name][done.numbers] = value

    def rows(self) -> Rows:
        """Give everything; rows in the order of their numbers."""
        values, observations, status = (self._arrays.get(kind, {}) for kind in ("values", "observations", "status"))
        return Rows(values, observations, status, tuple(sorted(self._failures, key=lambda failure: failure.number)))


def _aligned_zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Make an array that JAX can take over on a CPU without a copy."""
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def run_rows(run: Callable[[np.ndarray], Row], total: int, job: Job) -> Rows:
    """Run rows, make the host calls, and keep rows as they are complete; every call is counted when it is made.

    Rows that the shelf has are not run again.

    Args:
        run: Runs the rows of the given numbers.
        total: The number of rows.
        job: How they are run and counted.
    """
    collector = _Collector(total, job)
    if job.shelf is not None:
        collector.restore()
    calls = int(np.count_nonzero(~collector.known)) * job.structure.num_sites * job.plan.calls
    left = None if job.ledger is None else job.ledger.remaining(job.phase)
    if left is not None and left < calls:
        # Over budget: the ledger refuses before anything runs.
        job.count(calls)
    try:
        if job.plan.hosts:
            _run_host_rows(run, collector, job)
        else:
            _run_traced_rows(run, collector, job)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_keep(collector, job)) from None
    except SimulationError:
        if collector.watch.settled:
            _keep(collector, job)
        raise
    collector.save()
    if job.shelf is not None:
        job.shelf.flush()
    rows = collector.rows()
    report(rows.status, rows.values, rows.failures)
    return rows


def _keep(collector: _Collector, job: Job) -> str:
    """Write what is complete, and say how to go on."""
    collector.save()
    done = f"Interrupted after {int(collector.known.sum())} of {collector.total} simulations"
    if job.shelf is None:
        return f"{done}, which are lost. Pass store=... to keep simulations as they are made."
    job.shelf.flush()
    return f"{done}, all kept in {job.shelf.place}. Run the same call again to resume."


def _run_traced_rows(run: Callable[[np.ndarray], Row], collector: _Collector, job: Job) -> None:
    """Run rows whose simulators are part of the compiled program, in chunks that are never padded.

    Chunks depend on the number of rows alone, and are kept as a whole: compiled code may round differently in a chunk
    of another size, and a run that is resumed must give what an uninterrupted one gives.
    """
    for part in chunk(collector.total, job.chunk_size):
        numbers = np.asarray(part)
        numbers = numbers[~collector.known[numbers]]
        if not numbers.size:
            continue
        job.count(numbers.size * job.structure.num_sites * job.plan.traced_calls)
        began = time.perf_counter()
        work = _fetch(run, numbers)
        seconds = np.full(numbers.size, (time.perf_counter() - began) / numbers.size)
        bad, failures = _check_prior(collector, work, job)
        status, found = _statuses(numbers, work.observations, bad)
        collector.add(Done(numbers, work.values, work.observations, status, seconds, (*failures, *found)))


def _fetch(run: Callable[[np.ndarray], Row], numbers: np.ndarray) -> Work:
    """Run rows and bring them to the host."""
    as_arrays = jax.tree.map(np.asarray, run(numbers))
    return Work(numbers, as_arrays.values, as_arrays.observations, as_arrays.calls)


def _run_host_rows(run: Callable[[np.ndarray], Row], collector: _Collector, job: Job) -> None:
    hosts = {
        name: Host(
            fn=simulator.fn,
            spec=HostSpec(
                name=name,
                event_shape=tuple(simulator.event_shape),
                dtype=np.dtype(simulator.dtype).name,
                discrete=bool(simulator.is_discrete),
            ),
        )
        for name, simulator in job.plan.hosts.items()
    }
    missing = int(np.count_nonzero(~collector.known))
    session = job.caller.open(hosts, missing * job.structure.num_sites * job.plan.host_calls, job.count)

    def add(done: Done) -> None:
        made = {name: np.asarray(canonicalize(job.structure[name], done.observations[name])) for name in hosts}
        traced = {name: value for name, value in done.observations.items() if name not in hosts}
        status, found = _statuses(done.numbers, traced, np.zeros(done.numbers.size, bool))
        collector.add(
            done._replace(
                observations={**traced, **made},
                status={**status, **done.status},
                failures=(*done.failures, *found),
            )
        )

    try:
        for done in session.run(_works(run, collector, job)):
            add(done)
    except KeyboardInterrupt:
        for done in session.rescue():
            add(done)
        raise
    finally:
        session.close()


def _works(run: Callable[[np.ndarray], Row], collector: _Collector, job: Job) -> Iterator[Work]:
    """Draw the latents of missing rows and lay out their calls.

    Rows are always drawn in the same blocks, filled up at the end: compiled code may round differently in another
    place of a block, and the rows of a run must not depend on what was there before.
    """
    size, todo = job.chunk_size, ~collector.known
    for block in range(0, collector.total, size):
        wanted = np.flatnonzero(todo[block : block + size])
        if not wanted.size:
            continue
        work = _fetch(run, np.arange(block, block + size)).take(wanted)
        bad, failures = _check_prior(collector, work, job)
        if bad.any():
            _add_unsimulated(collector, job, work.take(bad), failures)
            work = work.take(~bad)
        job.count(work.numbers.size * job.structure.num_sites * job.plan.traced_calls)
        if work.numbers.size:
            yield work


def _check_prior(collector: _Collector, work: Work, job: Job) -> tuple[np.ndarray, tuple[Failure, ...]]:
    """Find prior draws that are not finite, and raise where they are many."""
    bad, failures, counts = prior_failures(work.numbers, work.values, job.structure.observations)
    collector.prior_counts.update(counts)
    most = MAX_PRIOR_FAILED * collector.total
    found = {name: count for name, count in collector.prior_counts.items() if count > most}
    if found:
        listed = ", ".join(f"{name!r} in {count}" for name, count in found.items())
        raise SimulationError(
            f"Prior draws are not finite: {listed} of {collector.total} simulations. "
            "Check the prior's arguments, or bound it away from where it overflows."
        )
    return bad, failures


def _add_unsimulated(collector: _Collector, job: Job, work: Work, failures: tuple[Failure, ...]) -> None:
    """Keep rows without outputs, as their prior draws are not finite."""
    observations = dict(work.observations)
    for name, simulator in job.plan.hosts.items():
        lead = work.calls[name].keys.shape[:-1]
        fill = np.iinfo(simulator.dtype).min if simulator.is_discrete else np.nan
        empty = np.full((*lead, *simulator.event_shape), fill, simulator.dtype)
        observations[name] = np.asarray(canonicalize(job.structure[name], empty))
    number = work.numbers.size
    status = {name: np.full(number, Status.NONFINITE, np.uint8) for name in job.structure.observations}
    collector.add(Done(work.numbers, work.values, observations, status, np.zeros(number), failures))


def _statuses(
    numbers: np.ndarray, observations: dict[str, np.ndarray], bad: np.ndarray
) -> tuple[dict[str, np.ndarray], tuple[Failure, ...]]:
    """Find rows of traced observations that are not finite; `bad` are known to fail."""
    status: dict[str, np.ndarray] = {}
    failures: list[Failure] = []
    error = CallError("", "numbers are not finite")
    for name, value in observations.items():
        usable = value != np.iinfo(value.dtype).min if value.dtype.kind == "i" else np.isfinite(value)
        failed = ~np.all(usable, axis=tuple(range(1, value.ndim)))
        status[name] = np.where(failed | bad, Status.NONFINITE, Status.OK).astype(np.uint8)
        failures += [Failure(int(number), name, Status.NONFINITE, error) for number in numbers[failed & ~bad]]
    return status, tuple(failures)


def check_counts(plan: Plan, done: Done) -> None:
    """Refuse outputs of simulators that are fractions of counts or lie outside a count support."""
    for name, support in plan.counts.items():
        value = np.asarray(done.observations[name])
        fractions = find_fractions(value)
        if fractions.any():
            below = whole_below(value[fractions][0])
            raise SimulationError(
                f"The simulator of {name!r} returned a number between {below} and {below + 1} in simulation "
                f"{_first(done, fractions)} at a count site, expected whole numbers. "
                "Round in the simulator, or give it a continuous support."
            )
        if support is None:
            continue
        usable = value != np.iinfo(value.dtype).min
        inside = np.asarray(support(jnp.asarray(value)))
        inside = inside.reshape(inside.shape + (1,) * (value.ndim - inside.ndim))
        wrong = usable & ~inside
        if wrong.any():
            raise SimulationError(
                f"The simulator of {name!r} returned {value[wrong][0]} in simulation {_first(done, wrong)}, which lies "
                f"outside its support {support}. Change the simulator, or give it the support that its values have."
            )


def _first(done: Done, wrong: np.ndarray) -> int:
    """Give the number of the first row with a wrong value."""
    return int(done.numbers[np.argwhere(wrong)[0][0]])
