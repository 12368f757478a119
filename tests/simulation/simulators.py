"""Host simulators that workers import: NumPy and the standard library alone."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


class Rejected(Exception):
    """An exception that can be pickled but not unpickled: its constructor takes two arguments."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def well(rng: np.random.Generator, eta: float, x: float, **_: Any) -> np.ndarray:
    return np.array([eta, x, rng.normal()])


def slow(rng: np.random.Generator, eta: float, x: float, *, seconds: float, **_: Any) -> np.ndarray:
    time.sleep(seconds)
    return well(rng, eta, x)


def busy(rng: np.random.Generator, eta: float, x: float, *, seconds: float, **_: Any) -> np.ndarray:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
    return well(rng, eta, x)


def raising(rng: np.random.Generator, eta: float, x: float, *, above: float, **_: Any) -> np.ndarray:
    if eta > above:
        raise Rejected("eta is", "too large")
    return well(rng, eta, x)


def not_finite(rng: np.random.Generator, eta: float, x: float, *, above: float, **_: Any) -> np.ndarray:
    return np.where(eta > above, np.array([np.nan, 1.0, 1e300]), well(rng, eta, x))


def hanging(rng: np.random.Generator, eta: float, x: float, *, above: float, **_: Any) -> np.ndarray:
    if eta > above:
        time.sleep(3600)
    return well(rng, eta, x)


def dying(rng: np.random.Generator, eta: float, x: float, *, above: float, once: str = "", **_: Any) -> np.ndarray:
    """Die by SIGKILL: every time, or once where a path is given that marks that it has happened."""
    if eta > above and not (once and Path(once).exists()):
        if once:
            Path(once).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return well(rng, eta, x)


def leaving(rng: np.random.Generator, eta: float, x: float, *, above: float, **_: Any) -> np.ndarray:
    """End the process with status 0, as a library may that thinks it is a program."""
    if eta > above:
        os._exit(0)
    return well(rng, eta, x)


def misshapen(rng: np.random.Generator, eta: float, x: float, *, above: float, **_: Any) -> np.ndarray:
    return np.zeros(4) if eta > above else well(rng, eta, x)


def overflowing(rng: np.random.Generator, eta: float, x: float, *, above: float, factor: float, **_: Any) -> np.ndarray:
    return well(rng, eta, x) * [1.0, 1.0, factor if eta > above else 1.0]


def of_dtype(rng: np.random.Generator, eta: float, x: float, *, dtype: str, **_: Any) -> np.ndarray:
    return (100 * well(rng, eta, x)).astype(dtype)


def exiting(rng: np.random.Generator, eta: float, x: float, **_: Any) -> np.ndarray:
    sys.exit(3)


def which_modules(rng: np.random.Generator, eta: float, x: float, **_: Any) -> np.ndarray:
    heavy = [name in sys.modules for name in ("jax", "numpyro", "hsbi.model.host")]
    return np.array(heavy, float)


FUNCTIONS: dict[str, Callable[..., np.ndarray]] = {
    function.__name__: function
    for function in (
        well,
        slow,
        busy,
        raising,
        not_finite,
        hanging,
        dying,
        leaving,
        misshapen,
        overflowing,
        of_dtype,
        exiting,
        which_modules,
    )
}


class Switch:
    """A simulator whose behavior is set between runs, so that one compiled program serves many tests.

    Every call leaves a byte in a file, where one is set: the honest count.
    """

    def __init__(self) -> None:
        self.set("well")

    def set(self, mode: str, *, tally: Path | None = None, **options: Any) -> None:
        self.mode, self.options, self.tally = mode, options, None if tally is None else str(tally)

    def __call__(self, rng: np.random.Generator, eta: float, x: float) -> np.ndarray:
        if self.tally is not None:
            with open(self.tally, "ab") as file:
                file.write(b".")
        return FUNCTIONS[self.mode](rng, eta, x, **self.options)


class Locked(Switch):
    """A simulator that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
