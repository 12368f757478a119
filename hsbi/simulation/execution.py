"""Say where host simulators run."""

import dataclasses
from collections.abc import Mapping
from concurrent.futures import Executor

from hsbi.model.calls import Count, Host, InProcess, Session


@dataclasses.dataclass(frozen=True, kw_only=True)
class Execution:
    """Where host simulators run: in this process, in spawned ones, or wherever an executor takes them.

    Results do not depend on it: every call has a seed of its own.

    Attributes:
        workers: Spawned processes; 0 runs simulators in this process. With an executor, about how many calls it makes
            at once; by default it is asked.
        timeout: The most seconds one call may take before its process is killed, or None.
        executor: Any `concurrent.futures.Executor`, such as a Dask client's.
    """

    workers: int = 0
    timeout: float | None = None
    executor: Executor | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if isinstance(self.workers, bool) or not isinstance(self.workers, int) or self.workers < 0:
            raise ValueError(f"workers is {self.workers!r}, expected a number of processes, or 0 for none.")
        if self.timeout is not None and not self.timeout > 0:
            raise ValueError(f"timeout is {self.timeout!r}, expected a positive number of seconds, or None.")
        if self.executor is not None and not isinstance(self.executor, Executor):
            raise TypeError(
                f"executor is a {type(self.executor).__name__}, expected a concurrent.futures.Executor. "
                "For Dask pass client.get_executor()."
            )
        # Asked of the executor's own attribute, as there is no other way; only pools of processes have it.
        context = getattr(self.executor, "_mp_context", None)
        if context is not None and context.get_start_method() == "fork":
            raise ValueError(
                "executor forks its processes, which hang once JAX has started its threads. Make it with "
                "mp_context=multiprocessing.get_context('spawn'), or pass workers=... instead."
            )
        if self.timeout is not None and (self.workers == 0 or self.executor is not None):
            raise ValueError(
                "timeout needs workers of 1 or more and no executor: a call can only be stopped by killing its process."
            )

    def open(self, hosts: Mapping[str, Host], total_calls: int, count: Count) -> Session:
        """Get ready to call the given simulators about so many times."""
        if self.executor is None and self.workers == 0:
            return InProcess().open(hosts, total_calls, count)
        # Imported late: most runs need no pool.
        from hsbi.simulation.pool import LocalPool, RemotePool, executor_workers
        from hsbi.simulation.schedule import Schedule

        if self.executor is not None:
            workers = self.workers or executor_workers(self.executor)
            return Schedule(hosts, RemotePool(hosts, self.executor, workers), total_calls, count)
        workers = max(1, min(self.workers, total_calls))
        return Schedule(hosts, LocalPool(hosts, workers, self.timeout), total_calls, count)
