"""Designs: what a posterior is trained for, beyond the arguments of one data set.

A design function draws the model's arguments. Many draws of it are pooled into one program, whose sites are all their
sites; simulations visit the pool, and synthetic data sets are the designs that were drawn.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hsbi.model.arguments import unbind_arguments
from hsbi.model.program import Program, map_leaves, with_num_sites
from hsbi.model.routes import bind

# Designs are drawn until the pool has about this many sites, within bounds on their number.
_POOL_SITES, _MIN_DESIGNS, _MAX_DESIGNS = 4096, 32, 512

DesignFunction = Callable[[Array], Mapping[str, Any]]


class Groups(NamedTuple):
    """Which sites of a pooled program make up each design.

    Attributes:
        index: The sites of each design, padded by its first, `[designs, most sites]`.
        size: The number of sites of each design, `[designs]`.
    """

    index: Array  # pyright: ignore[reportIncompatibleMethodOverride]
    size: Array

    @property
    def site_range(self) -> tuple[int, int]:
        """The fewest and the most sites of a design."""
        return int(np.min(self.size)), int(np.max(self.size))


def pool_designs(
    model: Callable[..., Any], design: DesignFunction, key: Array, observed: Sequence[str] = ()
) -> tuple[Program, Groups]:
    """Draw designs and pool their sites into one program.

    Args:
        model: The NumPyro model.
        design: Draws the model's arguments by name from a key. Arrays with one entry per site may differ in anything
            but their trailing shape; all else must be the same in every draw.
        key: The key of all draws.
        observed: Names of observed sites where the design gives no data.

    Raises:
        ValueError: If the model cannot be resized, or draws of the design do not fit together.
    """
    first = _draw(design, jax.random.fold_in(key, 0))
    args, kwargs = unbind_arguments(model, first)
    program = bind(model, args, kwargs, observed=observed)
    axes = {covariate.path: covariate.axis for covariate in program.structure.covariates}
    if program.route != "resize" or not axes:
        reason = program.reason or "no argument of the design has one entry per site."
        raise ValueError(f"The model cannot be trained for designs: {reason} Use num_sites=(low, high), or one design.")
    number = min(_MAX_DESIGNS, max(_MIN_DESIGNS, _POOL_SITES // program.num_sites))
    drawn = [first, *(_draw(design, jax.random.fold_in(key, i)) for i in range(1, number))]
    leaves = [_leaves(arguments) for arguments in drawn]
    sizes = np.asarray([_count_sites(found, axes, leaves[0]) for found in leaves])
    _refuse_differences(leaves, axes, sizes)

    def pool(path: str, leaf: Any) -> Any:
        if path in axes:
            return jnp.concatenate([jnp.asarray(found[path]) for found in leaves], axis=axes[path])
        return leaf

    arguments = map_leaves(pool, program.arguments)
    structure = with_num_sites(program.structure, int(sizes.sum()))
    pooled = dataclasses.replace(program, structure=structure, arguments=arguments)
    starts = np.cumsum(sizes) - sizes
    places = np.arange(sizes.max())[None, :]
    index = np.where(places < sizes[:, None], starts[:, None] + places, starts[:, None])
    return pooled, Groups(jnp.asarray(index), jnp.asarray(sizes))


def _draw(design: DesignFunction, key: Array) -> dict[str, Any]:
    arguments = design(key)
    if not isinstance(arguments, Mapping):
        raise ValueError(
            f"The design gave {type(arguments).__name__}, expected a mapping of the model's arguments by name, such as "
            "{'times': times}."
        )
    return dict(arguments)


def _leaves(arguments: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def keep(path: str, leaf: Any) -> Any:
        found[path] = leaf
        return leaf

    map_leaves(keep, arguments)
    return found


def _count_sites(leaves: Mapping[str, Any], axes: Mapping[str, int], first: Mapping[str, Any]) -> int:
    """Count the sites of one design, whose per-site arguments must agree with each other and with the first design."""
    if set(leaves) != set(first):
        raise ValueError(
            f"One draw of the design has the arguments {sorted(leaves)}, the first has {sorted(first)}. "
            "Give the same arguments in every draw."
        )
    counts = {path: np.shape(leaves[path])[axis] for path, axis in axes.items()}
    if len(set(counts.values())) != 1:
        raise ValueError(
            f"Arguments of one draw of the design have different numbers of sites: {counts}. Give each of them one "
            "entry per site."
        )
    for path, axis in axes.items():
        rest, expected = (np.delete(np.shape(found[path]), axis).tolist() for found in (leaves, first))
        if rest != expected:
            raise ValueError(
                f"Argument {path!r} has {rest} entries per site in one draw of the design and {expected} in the "
                "first. Pad to one shape, and mark what is not observed by NaN in the data or by `mask`."
            )
    return next(iter(counts.values()))


def _refuse_differences(leaves: Sequence[Mapping[str, Any]], axes: Mapping[str, int], sizes: np.ndarray) -> None:
    for path, value in leaves[0].items():
        others = [found[path] for found in leaves]
        if path in axes or all(_same(other, value) for other in others):
            continue
        # An argument that says how many sites there are.
        if all(np.ndim(other) == 0 and other == size for other, size in zip(others, sizes, strict=True)):
            continue
        raise ValueError(
            f"Argument {path!r} differs between draws of the design but has no entry per site. Repeat it for every "
            "site, or keep it the same."
        )


def _same(ours: Any, theirs: Any) -> bool:
    if ours is theirs:
        return True
    try:
        return bool(np.array_equal(ours, theirs))
    except (TypeError, ValueError):
        return False


def pad(ragged: Sequence[Any], *, fill: float | None = float("nan"), length: int | None = None) -> np.ndarray:
    """Stack arrays of different lengths, one per site, and fill up the shorter ones.

    Args:
        ragged: One array per site; their first axes may differ in length.
        fill: What to fill with: NaN, which marks missing data, or None to repeat a site's last entry, which suits
            functional inputs and covariates; a site without entries then gets zeros.
        length: The length to pad to; that of the longest by default.

    Returns:
        An array with the sites first.
    """
    arrays = [np.asarray(value, float) for value in ragged]
    if not arrays:
        raise ValueError("There is nothing to pad: expected a sequence with one array per site.")
    trailing = {array.shape[1:] for array in arrays}
    if any(array.ndim == 0 for array in arrays) or len(trailing) != 1:
        raise ValueError(
            f"Arrays of shapes {[array.shape for array in arrays[:4]]} cannot be padded: expected one array per site, "
            "which differ in the length of their first axis only."
        )
    longest = max(array.shape[0] for array in arrays)
    if length is not None and length < longest:
        raise ValueError(f"length is {length}, but the longest site has {longest} entries.")
    out = np.full((len(arrays), length or longest, *trailing.pop()), 0.0 if fill is None else fill)
    for row, array in zip(out, arrays, strict=True):
        row[: len(array)] = array
        if fill is None and len(array):
            row[len(array) :] = array[-1]
    return out
