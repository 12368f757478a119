"""The scope of a posterior: the designs it was trained for, and what lies outside."""

import dataclasses
from collections.abc import Collection

import numpy as np

from hsbi.inference.arrays import Design
from hsbi.model.data import site_covariates
from hsbi.model.program import Program

# Covariates may leave their trained range by the first fraction of it, functional inputs by the second: what networks
# make of inputs further out is arbitrary.
_MARGIN, _INPUT_MARGIN = 0.5, 0.05
# Rounding.
_TINY = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scope:
    """What designs a posterior was trained for.

    Attributes:
        covariates: The range of each covariate.
        inputs: The range of each observation's functional inputs, by dimension.
        counts: The fewest and the most observed values per site of each observation.
        pattern: The one pattern of missing values trained for; empty where there were none or many.
    """

    covariates: dict[str, tuple[float, float]]
    inputs: dict[str, tuple[float, float]]
    counts: dict[str, tuple[int, int]]
    pattern: dict[str, np.ndarray]

    def complaints(self, program: Program, design: Design) -> list[str]:
        """Say in what respects a design lies outside.

        Raises:
            ValueError: If it has other covariates.
        """
        found = make_scope(program, design)
        if found.covariates.keys() != self.covariates.keys():
            raise ValueError(
                f"The arguments give {_list(found.covariates)}, but the posterior was trained with "
                f"{_list(self.covariates)}. Pass the same arguments as for training."
            )
        notes = []
        for own, theirs, slack in (
            (self.covariates, found.covariates, _MARGIN),
            (self.inputs, found.inputs, _INPUT_MARGIN),
        ):
            for name, (low, high) in theirs.items():
                first, last = own.get(name, (low, high))
                room = slack * (last - first) + _TINY * max(1.0, abs(first), abs(last))
                if low < first - room or high > last + room:
                    notes.append(f"{name} from {low:g} to {high:g}, trained from {first:g} to {last:g}")
        for name, (few, most) in found.counts.items():
            fewest, at_most = self.counts.get(name, (few, most))
            if few < fewest or most > at_most:
                notes.append(f"{few} to {most} values of {name!r} per site, trained for {fewest} to {at_most}")
            elif name in self.pattern and not _equal(self.pattern[name], found.pattern.get(name)):
                notes.append(f"another pattern of missing values of {name!r} than the one trained for")
        return notes

    def lines(self) -> list[str]:
        """Describe the scope, a line for each range."""
        ranges = {**self.covariates, **self.inputs}
        lines = [f"{name}: {low:g} to {high:g}" for name, (low, high) in ranges.items()]
        for name, (few, most) in self.counts.items():
            lines.append(f"values of {name!r} per site: {few if few == most else f'{few} to {most}'}")
        return lines


def make_scope(program: Program, design: Design, *, hidden: bool = False, many: bool = False) -> Scope:
    """Give the scope of a design.

    Args:
        program: The program.
        design: Its design.
        hidden: Whether further values are hidden at random.
        many: Whether the program's sites belong to many data sets.
    """
    columns = np.asarray(design.covariates).T
    covariates = {
        f"covariate {name!r}": (float(column.min()), float(column.max()))
        for name, column in zip(site_covariates(program)[1], columns, strict=True)
    }
    pattern = {name: np.asarray(mask) for name, mask in design.masks.items()}
    return Scope(
        covariates=covariates,
        inputs=_input_ranges(design),
        counts=_counts(program, pattern, 0 if hidden else None),
        pattern={} if hidden or many else pattern,
    )


def _input_ranges(design: Design) -> dict[str, tuple[float, float]]:
    ranges: dict[str, tuple[float, float]] = {}
    for name, inputs in design.inputs.items():
        values = np.asarray(inputs)
        if name in design.masks:
            values = values[np.any(np.asarray(design.masks[name]), axis=-1)]
        for dim, column in enumerate(values.reshape(-1, inputs.shape[-1]).T):
            label = f"inputs of {name!r}" + (f", dimension {dim}" if inputs.shape[-1] > 1 else "")
            if column.size:
                ranges[label] = (float(column.min()), float(column.max()))
    return ranges


def _counts(program: Program, pattern: dict[str, np.ndarray], fewest: int | None) -> dict[str, tuple[int, int]]:
    counts: dict[str, tuple[int, int]] = {}
    for name in program.structure.observations:
        per_site = int(np.prod(program.structure[name].shape)) // program.num_sites
        if name in pattern:
            known = pattern[name].reshape(program.num_sites, -1).sum(axis=1)
            low, high = int(known.min()), int(known.max())
        else:
            low = high = per_site
        counts[name] = (low if fewest is None else fewest, high)
    return counts


def _list(names: Collection[str]) -> str:
    return ", ".join(names) or "no covariates"


def _equal(ours: np.ndarray, theirs: np.ndarray | None) -> bool:
    return theirs is not None and np.array_equal(ours, theirs)


def refuse_missing(design: Design, trained: Collection[str]) -> None:
    """Refuse missing values of observations that the posterior has seen complete only.

    Raises:
        ValueError: Names the observations and the numbers of missing values.
    """
    found = {name: np.asarray(mask) for name, mask in design.masks.items() if name not in trained}
    if not found:
        return
    counts = [f"{int(np.sum(~mask))} of {mask.size} values of {name!r}" for name, mask in found.items()]
    raise ValueError(
        f"Missing data: {', '.join(counts)}. The posterior was trained for complete data. "
        "Pass complete data, or train with missing=0.5, say, to allow for up to half of the values missing."
    )
