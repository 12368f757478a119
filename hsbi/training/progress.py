"""Progress as a callback, with a tqdm bar as its default form."""

import os
from collections.abc import Callable
from typing import Protocol


class Bar(Protocol):
    """What a stage tells about its progress."""

    def update(self, done: int, note: str = "") -> None:
        """Report how many units are done in all."""
        ...

    def close(self) -> None:
        """Report that the stage is over."""
        ...


Progress = Callable[[str, int], Bar]
"""Called with a stage's name and its number of units; returns the stage's bar."""


class _Silent:
    def update(self, done: int, note: str = "") -> None:
        """Say nothing."""

    def close(self) -> None:
        """Say nothing."""


class _Tqdm:
    def __init__(self, name: str, total: int) -> None:
        from tqdm.auto import tqdm

        self._bar = tqdm(total=total, desc=name, leave=True)

    def update(self, done: int, note: str = "") -> None:
        """Move the bar."""
        self._bar.set_postfix_str(note, refresh=False)
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Leave the bar where it is."""
        self._bar.close()


def no_progress(name: str, total: int) -> Bar:
    """Show nothing."""
    return _Silent()


def show_progress(name: str, total: int) -> Bar:
    """Show a tqdm bar, unless the environment asks for quiet as continuous integration does."""
    if os.environ.get("CI") or os.environ.get("HSBI_NO_PROGRESS"):
        return _Silent()
    return _Tqdm(name, total)
