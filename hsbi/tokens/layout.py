"""The layout of a token sequence: which variable, position and group each token has. Static and hashable."""

import dataclasses
import math

import numpy as np

from hsbi.model.structure import Level, Structure

# The widest token: a variable with more numbers makes several.
MAX_WIDTH = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variable:
    """One variable of the sequence.

    Attributes:
        name: The site's name.
        level: Its level.
        id: Its number in the sequence's table of variables.
        rows: Values that stand for themselves: replicates and points with inputs of an observation, else one.
        size: Numbers in a row; for latents, their coordinates.
        width: The width of tokens.
        inputs: Dimensions of the functional input, 0 without.
    """

    name: str
    level: Level
    id: int
    rows: int
    size: int
    width: int
    inputs: int = 0

    @property
    def tokens_per_row(self) -> int:
        """The tokens that a row needs."""
        return max(1, math.ceil(self.size / self.width))

    @property
    def num_tokens(self) -> int:
        """The tokens in one group."""
        return self.rows * self.tokens_per_row


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """The layout of a whole sequence: tokens of globals, then of each site's locals, then of each site's observations.

    Attributes:
        variables: The variables, in order of level.
        num_sites: The number of sites.
        width: The width of tokens.
    """

    variables: tuple[Variable, ...]
    num_sites: int
    width: int

    def of_level(self, level: Level) -> tuple[Variable, ...]:
        """Give the variables of a level."""
        return tuple(variable for variable in self.variables if variable.level == level)

    def tokens_per_group(self, level: Level) -> int:
        """Count the tokens of a level in one group."""
        return sum(variable.num_tokens for variable in self.of_level(level))

    @property
    def num_parameters(self) -> int:
        """The tokens of parameters, which come first."""
        return self.tokens_per_group("global") + self.num_sites * self.tokens_per_group("local")

    @property
    def num_tokens(self) -> int:
        """The tokens of the sequence."""
        return self.num_parameters + self.num_sites * self.tokens_per_group("observation")

    @property
    def num_inputs(self) -> int:
        """Dimensions of the widest functional input."""
        return max((variable.inputs for variable in self.variables), default=0)

    @property
    def num_positions(self) -> int:
        """The most tokens of a variable in one group."""
        return max(variable.num_tokens for variable in self.variables)

    def fields(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Give each token's variable, its position in the variable and its group; group 0 is that of globals."""
        ids, positions, groups = [], [], []
        for level in ("global", "local", "observation"):
            variables = self.of_level(level)
            for group in range(1 if level == "global" else self.num_sites):
                for variable in variables:
                    ids += [variable.id] * variable.num_tokens
                    positions += range(variable.num_tokens)
                    groups += [0 if level == "global" else group + 1] * variable.num_tokens
        return np.asarray(ids, np.int32), np.asarray(positions, np.int32), np.asarray(groups, np.int32)


def make_layout(structure: Structure) -> Layout:
    """Derive the layout from a program's structure."""
    sizes: list[tuple[str, Level, int, int, int]] = []
    for level in ("global", "local", "observation"):
        for site in structure.sites:
            if site.level != level:
                continue
            if level != "observation":
                sizes.append((site.name, level, 1, site.num_coordinates, 0))
                continue
            has_sites = structure.site_plate is not None and structure.site_plate.name in site.plates
            rows = math.prod(site.shape[int(has_sites) : len(site.plates)])
            size = math.prod(site.event_shape)
            inputs = 0
            if site.inputs is not None:
                inputs = _input_dims(site.inputs, site.program_shape)
                rows, size = rows * size, 1
            sizes.append((site.name, level, rows, size, inputs))
    width = max(min(size, MAX_WIDTH) for _, _, _, size, _ in sizes)
    variables = tuple(
        Variable(name=name, level=level, id=number, rows=rows, size=size, width=width, inputs=inputs)
        for number, (name, level, rows, size, inputs) in enumerate(sizes)
    )
    return Layout(variables=variables, num_sites=structure.num_sites, width=width)


def _input_dims(inputs: tuple[int, ...], shape: tuple[int, ...]) -> int:
    """Count the dimensions of functional inputs: the last axis where the rest, and not the whole, fits a value."""
    if len(inputs) > len(shape) or (not _fits(inputs, shape) and _fits(inputs[:-1], shape)):
        return inputs[-1]
    return 1


def _fits(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Say whether a shape broadcasts to another."""
    pairs = zip(reversed(shape), reversed(target), strict=False)
    return len(shape) <= len(target) and all(size in (1, wanted) for size, wanted in pairs)
