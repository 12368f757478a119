"""What `hsbi.check` found: lines to read, arrays to look into, figures and a page."""

import dataclasses
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from hsbi.diagnostics.levels import LevelCheck
from hsbi.diagnostics.observation_check import ObservationCheck
from hsbi.diagnostics.surrogate_check import SurrogateCheck
from hsbi.diagnostics.two_sample import Lc2st
from hsbi.diagnostics.verdict import Line, Verdict, severity, worse
from hsbi.model.structure import Structure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAX_LINES = 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The outcome of `hsbi.check`.

    `print` shows it in at most 30 lines.

    Attributes:
        lines: The verdicts, one per line.
        levels: The check of each level on synthetic data sets: `globals`, `locals`, `joint`.
        real_levels: The same on data sets from the real simulator, if a budget was granted.
        surrogates: The check of each observation's surrogate.
        observation: The observed data beside simulated ones, if the estimator has drawn for any.
        local_test: `lc2st` of the globals at the observed data.
        num_sites: The number of sites of each data set, `[datasets]`.
        places: The places of the sites whose locals were kept.
        structure: The model's structure.
        num_data_sets: Synthetic data sets with draws.
        num_draws: Draws for each.
        num_simulations: Calls of the real simulator that the check made.
        seconds: How long it took.
    """

    lines: tuple[Line, ...]
    levels: dict[str, LevelCheck]
    real_levels: dict[str, LevelCheck]
    surrogates: dict[str, SurrogateCheck]
    observation: ObservationCheck | None
    local_test: Lc2st | None
    num_sites: np.ndarray
    places: np.ndarray
    structure: Structure
    num_data_sets: int
    num_draws: int
    num_simulations: int
    seconds: float

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of all lines."""
        return worse([line.verdict for line in self.lines])

    def __getitem__(self, name: str) -> Line:
        """Give a line by its name."""
        for line in self.lines:
            if line.name == name:
                return line
        raise KeyError(f"There is no line {name!r}; lines are {', '.join(repr(line.name) for line in self.lines)}.")

    def header(self) -> str:
        """Say what was done, in one line."""
        return (
            f"{self.verdict}: {self.num_data_sets} data sets, {self.num_draws} draws each, {self.num_simulations} real "
            f"simulations, {self.seconds:.0f} s"
        )

    def __str__(self) -> str:
        """Show the verdict, then each line with what to do about it; of too many, the worst."""
        width = max(len(line.name) for line in self.lines)
        rows = [self._rows(line, width) for line in self.lines]
        shown: set[int] = set()
        room = _MAX_LINES - 1
        if sum(map(len, rows)) > room:
            room -= 1  # for the note
        # Lines keep their order, but where there is no room the worst go in first.
        for place in sorted(range(len(rows)), key=lambda place: severity(self.lines[place].verdict), reverse=True):
            if len(rows[place]) > room:
                break
            shown.add(place)
            room -= len(rows[place])
        text = [self.header(), *(row for place in sorted(shown) for row in rows[place])]
        if len(shown) < len(rows):
            rest: list[Verdict] = [line.verdict for place, line in enumerate(self.lines) if place not in shown]
            text.append(f"  ... {len(rest)} more, {worse(rest)} at worst; see report.lines")
        return "\n".join(text)

    @staticmethod
    def _rows(line: Line, width: int) -> list[str]:
        rows = [f"  {line.verdict:<8}  {line.name:<{width}}  {line.finding}"]
        return rows + ([f"  {'':<8}  {'':<{width}}  -> {line.advice}"] if line.advice else [])

    def to_arviz(self) -> Any:
        """Give ranks and what they came from as arviz data.

        Groups, each with one chain and a draw for every data set: `prior_sbc`, ranks in [0, 1] as ArviZ's
        `plot_ecdf_pit` takes them; `prior_sbc_truth` and `prior_sbc_mean`, true values and posterior means;
        `prior_sbc_contraction`; and `surrogate_pit`, ranks of real simulations among surrogate draws. Sites that a data
        set does not have are NaN.
        """
        from hsbi.results import named_groups

        groups: dict[str, dict[str, tuple[np.ndarray, tuple[str, ...]]]] = {}
        for group, attribute in _GROUPS.items():
            groups[group] = {}
            for level in ("globals", "locals"):
                if level in self.levels:
                    check = self.levels[level]
                    groups[group].update(self._by_site(check, getattr(check, attribute)))
        groups["surrogate_pit"] = {
            name: (check.ranks[None], ("chain", "draw", f"{name}_entry")) for name, check in self.surrogates.items()
        }
        plate = self.structure.site_plate
        return named_groups(groups, coords=None if plate is None else {plate.name: self.places.tolist()})

    def _by_site(self, check: LevelCheck, values: np.ndarray) -> dict[str, tuple[np.ndarray, tuple[str, ...]]]:
        """Split columns into sites of the model, with named dims."""
        values = np.where(check.mask[..., None], values, np.nan)
        names = self.structure.globals if check.level == "globals" else self.structure.locals
        found: dict[str, tuple[np.ndarray, tuple[str, ...]]] = {}
        start = 0
        for name in names:
            site = self.structure[name]
            shape = site.shape if check.level == "globals" else site.shape[1:]
            stop = start + int(np.prod(shape))
            part = values[..., start:stop].reshape(*values.shape[:2], *shape)
            dims = ("chain", "draw", *(f"{name}_dim_{axis}" for axis in range(len(shape))))
            if check.level == "globals":
                part = part[:, 0]
            else:
                assert self.structure.site_plate is not None
                dims = ("chain", "draw", self.structure.site_plate.name, *dims[2:])
            found[name] = (part[None], dims)
            start = stop
        return found

    def plot(self) -> "Figure":
        """Draw calibration, TARP, contraction, recovery, surrogates and the observed data in one figure."""
        from hsbi.plots import report

        return report(self)

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write a page with the verdicts, their explanation and all figures, without links to other files.

        Args:
            path: Where to write, such as `report.html`.
        """
        from hsbi.diagnostics.html import write_page

        write_page(self, path)


_GROUPS = {
    "prior_sbc": "ranks",
    "prior_sbc_truth": "truths",
    "prior_sbc_mean": "mean",
    "prior_sbc_contraction": "contraction",
}
