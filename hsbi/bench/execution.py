"""What it costs to run and keep simulations, beside the simulations themselves.

Run as `python -m hsbi.bench.execution` on a machine that has nothing else to do. A simulator that adds up numbers is
run by hsbi, with a store, and in bare Python loops, as many at once as hsbi uses processes. Loops come before and after
each run, and a few rounds are made, of which medians are given:

- Overhead at 10 ms and two workers: hsbi's time per simulation and core over that of the loops, minus one.
- Throughput per core at 0.1 ms: the loops' time per simulation over hsbi's per simulation and core.

Time is that of the clock, from the call to its return: the start of the pool and every wait are part of it. Processor
time of all processes is shown beside it, which other work on the machine disturbs less, but which shows no waiting.
Then a store is opened as training does, in a new process, for its time and the growth of peak memory, and trained on
briefly in others, for the growth of peak memory beyond the simulations themselves. Twice as many simulations tell a
copy of them, which doubles, from what training takes whatever their number: data sets that validate the posterior and
what compiled code holds meanwhile. Large blocks of freed memory are given back at once while this is measured; what the
C library keeps of them by its own rule depends on the order of past requests. `--keep-freed` leaves it to that rule.

The exit status is 1 where a figure by the clock, or of the store, is beyond its limit.
"""

import argparse
import ctypes
import functools
import gc
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

MAX_OVERHEAD, MIN_THROUGHPUT, MAX_OPEN_SECONDS = 0.15, 0.60, 5.0
# One copy of the simulations is what an open store needs, a second would make two. While one file is read, its bytes,
# its arrays and the rows taken from them are there as well: four times 4 % at 100,000 rows in 25 files. The rest is for
# what the allocator keeps.
MAX_COPIES = 1.6
# Training holds the simulations once, so that what it adds is less than a second copy. What it adds for each further
# simulation is far less: a tenth is held out and encoded, and there are a few numbers for each.
MAX_TRAINING_COPIES, MAX_TRAINING_SLOPE = 1.0, 0.5
# The parameter of glibc's `mallopt` for the size from which memory is given back once it is freed, and that size. By
# default it grows up to 32 MB with what a process frees.
_MMAP_THRESHOLD, _GIVEN_BACK = -3, 2**18
_WORKERS, _ROUNDS = 2, 3
_WIDTH = 100
_SITES = np.linspace(-1.0, 1.0, 5)


def add_up(rng: np.random.Generator, eta: float, x: float, *, iterations: int) -> np.ndarray:
    """Simulate by so many additions."""
    total = rng.normal()
    for _ in range(iterations):
        total += 1e-9
    return np.array([eta, x, total])


def calibrate(seconds: float) -> int:
    """Give the additions that take so many seconds of processor time, as the machine is now."""
    rng = np.random.default_rng(0)
    iterations = 1_000_000
    used = _processor_time()
    add_up(rng, 0.0, 0.0, iterations=iterations)
    return max(1, int(iterations * seconds / (_processor_time() - used)))


def _make_model(simulator: Any, **kwargs: Any) -> Any:
    import numpyro
    import numpyro.distributions as dist

    import hsbi

    def model(x: Any) -> None:
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("site", len(x)):
            eta = numpyro.sample("eta", dist.Normal(mu, 1.0))
            numpyro.sample("y", hsbi.Simulator(simulator, eta, x, **kwargs))

    return model


def _bind(model: Any) -> Any:
    from hsbi.model.routes import bind

    return bind(model, (_SITES,), {})


# What is measured, by the clock and in processor time, its limit, and whether it is kept.
_Result = tuple[str, float, float | None, float, bool]


class Cost(NamedTuple):
    """The time of one simulation, or a ratio of such times: by the clock, and processor time of all processes."""

    clock: float
    processor: float


def measure_pool(iterations: int, number: int, workers: int) -> Cost:
    """Give the time of one simulation by hsbi, with a store; a run before it compiles and is not counted."""
    import jax

    from hsbi.model.simulate import simulate_sites
    from hsbi.simulation.execution import Execution
    from hsbi.simulation.shelf import Shelf

    program = _bind(_make_model(functools.partial(add_up, iterations=iterations), host=True, event_shape=(3,)))
    key = jax.random.key(0)
    simulate_sites(program, key, 2)
    with tempfile.TemporaryDirectory() as folder:
        shelf = Shelf(folder, program, key)
        used, started = _processor_time(), time.perf_counter()
        simulate_sites(program, key, number, caller=Execution(workers=workers), shelf=shelf)
        return Cost((time.perf_counter() - started) / number, (_processor_time() - used) / number)


def run_loop(iterations: int, number: int) -> Cost:
    """Give the time of one simulation in a bare loop."""
    rng = np.random.default_rng(0)
    used, started = time.process_time(), time.perf_counter()
    for _ in range(number):
        add_up(rng, 0.1, 0.2, iterations=iterations)
    return Cost((time.perf_counter() - started) / number, (time.process_time() - used) / number)


def measure_loops(iterations: int, number: int, processes: int) -> Cost:
    """Give the time of one simulation in bare loops, in some processes at once."""
    command = [sys.executable, "-m", __spec__.name, "--loop", str(iterations), str(number)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    costs = [json.loads(process.communicate()[0]) for process in running]
    return Cost(*np.mean(costs, axis=0).tolist())


def compare(seconds: float, number: int, workers: int) -> Cost:
    """Give the throughput per core relative to bare loops, by the clock and by processor time.

    Args:
        seconds: The time of one simulation.
        number: The number of simulations.
        workers: Worker processes; with none, simulations run in one process.
    """
    processes = max(workers, 1)
    iterations = calibrate(seconds)
    share = number // (2 * processes)
    loops, ratios = [measure_loops(iterations, share, processes)], []
    for _ in range(_ROUNDS):
        found = measure_pool(iterations, number, workers)
        loops.append(measure_loops(iterations, share, processes))
        bare = np.mean(loops[-2:], axis=0)
        ratios.append((bare[0] / (processes * found.clock), bare[1] / found.processor))
    return Cost(*np.median(ratios, axis=0).tolist())


def _processor_time() -> float:
    """Give the processor time of this process and of its children that have ended."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def _wide_model() -> Any:
    import jax
    import jax.numpy as jnp

    def wide(key: Any, eta: Any, x: Any) -> Any:
        return eta + x + jax.random.normal(key, (_WIDTH,), jnp.float32)

    return _make_model(wide)


def fill(folder: str, number: int) -> None:
    """Fill a store."""
    import jax

    from hsbi.model.simulate import simulate_sites
    from hsbi.simulation.shelf import Shelf

    program = _bind(_wide_model())
    simulate_sites(program, jax.random.key(0), number, shelf=Shelf(folder, program, jax.random.key(0)))


def measure_store(folder: str, number: int) -> dict[str, float]:
    """Read a store as training does.

    Returns:
        Seconds, and the growth of peak memory as a multiple of the simulations' size.
    """
    import jax

    from hsbi.model.simulate import simulate_sites
    from hsbi.simulation.ledger import Ledger
    from hsbi.simulation.shelf import Shelf

    program = _bind(_wide_model())
    key = jax.random.key(0)
    # Compiles what a run and a store of any length need.
    with tempfile.TemporaryDirectory() as warm:
        for _ in range(2):
            simulate_sites(program, key, 2, shelf=Shelf(warm, program, key))
    gc.collect()
    before = _reset_peak()
    started = time.perf_counter()
    rows = simulate_sites(program, key, number, ledger=Ledger(0), shelf=Shelf(folder, program, key))
    jax.block_until_ready(rows)
    seconds = time.perf_counter() - started
    size = sum(value.nbytes for value in (*rows.values.values(), *rows.observations.values()))
    return {"seconds": seconds, "copies": (_status("VmHWM") - before) / size}


def measure_training(folder: str, number: int, *, keep_freed: bool = False) -> dict[str, float]:
    """Train on a store twice alike, as the first time compiles.

    Args:
        folder: The store.
        number: The simulations to train on.
        keep_freed: Whether the allocator keeps of freed memory what it will.

    Returns:
        The simulator calls that were made; the size of the simulations; and the growth of peak memory the second time,
        beyond simulations that are there.
    """
    import jax

    import hsbi

    if not keep_freed:
        _stop_keeping_freed_memory()
    brief = hsbi.FitConfig(num_steps=4, epoch_steps=2)
    # Weights that stay as they are help nothing, so that no network is kept, whatever the number of simulations.
    still = hsbi.FitConfig(num_steps=4, epoch_steps=2, learning_rate=0.0)
    lf = hsbi.LF(
        _wide_model(),
        num_simulations=number,
        store=folder,
        progress=False,
        surrogate_config=hsbi.SurrogateConfig(width=8, correction=still, flow=still),
        posterior_config=hsbi.FactorizedConfig(width=8, batch_size=4, head=brief, flow=brief),
    )
    rows = lf.simulate(jax.random.key(0), _SITES)
    size = sum(value.nbytes for value in (*rows.values.values(), *rows.observations.values()))

    def train() -> int:
        """Train from the start and give the growth of peak memory."""
        gc.collect()
        _return_freed_memory()
        before = _reset_peak()
        with tempfile.TemporaryDirectory() as states:
            lf.fit(jax.random.key(1), checkpoint=states)
        return _status("VmHWM") - before

    train()
    return {"calls": lf.ledger.total, "size": size, "growth": train()}


def _stop_keeping_freed_memory() -> None:
    """Let the allocator give large blocks back as soon as they are freed."""
    change = getattr(ctypes.CDLL(None), "mallopt", None)
    if change is not None:
        change(_MMAP_THRESHOLD, _GIVEN_BACK)


def _return_freed_memory() -> None:
    """Give back what the allocator keeps of freed memory: it would be used again without a growth to be seen."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _reset_peak() -> int:
    """Make the peak of memory start again from what is used now, as Linux allows, and give that."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def _run_apart(option: str, folder: str, number: int) -> dict[str, float]:
    """Run a measurement of a store in a process of its own."""
    command = [sys.executable, "-m", __spec__.name, option, folder, str(number)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output.splitlines()[-1])


def main() -> int:
    """Print the measurements and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slow", type=int, default=3_000, help="simulations of 10 ms")
    parser.add_argument("--fast", type=int, default=100_000, help="simulations of 0.1 ms")
    parser.add_argument("--stored", type=int, default=100_000, help="simulations in the store")
    parser.add_argument("--loop", nargs=2, type=int, metavar=("ITERATIONS", "NUMBER"), help="time a bare loop here")
    parser.add_argument("--open", nargs=2, metavar=("FOLDER", "NUMBER"), help="read a store here and print JSON")
    parser.add_argument("--train", nargs=2, metavar=("FOLDER", "NUMBER"), help="train on a store here and print JSON")
    parser.add_argument("--keep-freed", action="store_true", help="with --train: let the allocator keep freed memory")
    options = parser.parse_args()
    if options.train:
        folder, number = options.train
        print(json.dumps(measure_training(folder, int(number), keep_freed=options.keep_freed)))
        return 0
    if options.open:
        print(json.dumps(measure_store(options.open[0], int(options.open[1]))))
        return 0
    if options.loop:
        print(json.dumps(run_loop(*options.loop)))
        return 0
    print(f"load of the machine before: {os.getloadavg()[0]:.2f} on {os.cpu_count()} processors", flush=True)
    results: list[_Result] = []
    found = compare(1e-2, options.slow, _WORKERS)
    overhead = Cost(1.0 / found.clock - 1.0, 1.0 / found.processor - 1.0)
    label = f"overhead, 10 ms, {_WORKERS} workers"
    results.append((label, overhead.clock, overhead.processor, MAX_OVERHEAD, overhead.clock <= MAX_OVERHEAD))
    for workers in (0, 1, _WORKERS):
        found = compare(1e-4, options.fast, workers)
        label = f"throughput per core, 0.1 ms, {workers} workers"
        results.append((label, found.clock, found.processor, MIN_THROUGHPUT, found.clock >= MIN_THROUGHPUT))
    results += _measure_stored(options.stored)
    print(f"{'':<44}{'clock':>9}{'processor':>11}{'limit':>8}")
    for label, clock, processor, limit, good in results:
        second = "" if processor is None else f"{processor:.3f}"
        print(f"{label:<44}{clock:>9.3f}{second:>11}{limit:>8.2f}{'' if good else '  beyond the limit'}")
    return int(not all(good for *_, good in results))


def _measure_stored(number: int) -> list[_Result]:
    """Open a store of so many simulations and train on it, and on twice as many."""
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        fill(store, 2 * number)
        opened = _run_apart("--open", store, number)
        trained, twice = (_run_apart("--train", store, rows) for rows in (number, 2 * number))
    slope = (twice["growth"] - trained["growth"]) / (twice["size"] - trained["size"])
    more = trained["growth"] / trained["size"]
    label = f"opening {number} x {_WIDTH}"
    seconds, copies = opened["seconds"], opened["copies"]
    return [
        (f"{label}, s", seconds, None, MAX_OPEN_SECONDS, seconds < MAX_OPEN_SECONDS),
        (f"{label}, copies in memory", copies, None, MAX_COPIES, copies <= MAX_COPIES),
        (f"training on {number} x {_WIDTH}, copies more", more, None, MAX_TRAINING_COPIES, more < MAX_TRAINING_COPIES),
        ("  for each further simulation", slope, None, MAX_TRAINING_SLOPE, slope < MAX_TRAINING_SLOPE),
    ]


if __name__ == "__main__":
    sys.exit(main())
