"""An honest count of simulator calls."""

import operator
from collections.abc import Mapping
from typing import SupportsIndex


class Ledger:
    """Count the single-site simulator calls that were really made, phase by phase.

    Examples:
        >>> ledger = Ledger(budget={"simulate": 100})
        >>> ledger.add("simulate", 40)
        >>> ledger["simulate"], ledger.total
        (40, 40)
    """

    def __init__(self, budget: int | Mapping[str, int] | None = None) -> None:
        """Start at zero.

        Args:
            budget: The most calls allowed, over all phases as one number or per phase as a mapping; phases that the
                mapping does not name, and everything by default, are free of limit.
        """
        limits = dict(budget) if isinstance(budget, Mapping) else {} if budget is None else {"": budget}
        for phase, limit in limits.items():
            if not _is_count(limit):
                raise ValueError(
                    f"The budget{f' of phase {phase!r}' if phase else ''} is {limit!r}, expected a whole number of "
                    "simulator calls, zero or more."
                )
        self._total_budget = int(limits.pop("")) if not isinstance(budget, Mapping) and limits else None
        self._budgets = {phase: int(limit) for phase, limit in limits.items()}
        self._counts: dict[str, int] = {}
        self._restored: dict[str, int] = {}

    @property
    def counts(self) -> dict[str, int]:
        """The calls of each phase so far, as a copy."""
        return dict(self._counts)

    @property
    def total(self) -> int:
        """The calls of all phases."""
        return sum(self._counts.values())

    @property
    def restored(self) -> dict[str, int]:
        """The calls of each phase whose results came from a store, as a copy; they are no part of the counts."""
        return dict(self._restored)

    @property
    def budget(self) -> int | dict[str, int] | None:
        """The budget as it was given."""
        return self._total_budget if self._total_budget is not None else dict(self._budgets) or None

    def remaining(self, phase: str) -> int | None:
        """Give the calls that `phase` may still make, or None when nothing limits it."""
        if self._total_budget is not None:
            return self._total_budget - self.total
        return self._budgets[phase] - self[phase] if phase in self._budgets else None

    def add(self, phase: str, count: int) -> None:
        """Count calls of one phase.

        Call it before simulating: when the budget does not suffice nothing is counted, and nothing should be run.

        Args:
            phase: The phase, such as `simulate`.
            count: How many single-site calls are made.
        """
        if not _is_count(count):
            raise ValueError(
                f"Phase {phase!r} reported {count!r} simulator calls, expected a whole number, zero or more."
            )
        left = self.remaining(phase)
        if left is not None and count > left:
            raise ValueError(
                f"Phase {phase!r} asks for {int(count)} simulator calls, but only {left} are left of the budget. "
                "Raise the budget or ask for fewer simulations."
            )
        self._counts[phase] = self[phase] + int(count)

    def restore(self, phase: str, count: int) -> None:
        """Note calls that were made before and whose results came from a store.

        Args:
            phase: The phase, such as `simulate`.
            count: How many single-site calls were not made again.
        """
        if not _is_count(count):
            raise ValueError(f"Phase {phase!r} restored {count!r} simulator calls, expected a whole number.")
        self._restored[phase] = self._restored.get(phase, 0) + int(count)

    def __getitem__(self, phase: str) -> int:
        """Give the calls of one phase, zero if it made none."""
        return self._counts.get(phase, 0)

    def __str__(self) -> str:
        """Show one line per phase and the total."""
        phases = dict.fromkeys([*self._counts, *self._restored])
        rows = [*((phase, self[phase]) for phase in phases), ("total", self.total)]
        width = max(len(name) for name, _ in rows)
        digits = max(len(f"{count:,}") for _, count in rows)
        lines = ["simulator calls"]
        for name, count in rows:
            limit = self._total_budget if name == "total" else self._budgets.get(name)
            line = f"  {name:<{width}}  {count:>{digits},}" + ("" if limit is None else f" of {limit:,}")
            stored = self._restored.get(name)
            lines.append(line if stored is None else f"{line}, and {stored:,} from the store")
        return "\n".join(lines)

    def __repr__(self) -> str:
        """Show the counts, and the budget if there is one."""
        parts = [f"{phase}={count}" for phase, count in self._counts.items()]
        parts += [] if self.budget is None else [f"budget={self.budget}"]
        return f"Ledger({', '.join(parts)})"


def _is_count(value: object) -> bool:
    # Integer-like of any library, but no booleans and no floats.
    return not isinstance(value, bool) and isinstance(value, SupportsIndex) and operator.index(value) >= 0
