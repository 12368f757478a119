"""A NumPyro model bound to its arguments, at any number of sites."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from hsbi.model.structure import Covariate, Site, Structure

Route = Literal["resize", "pick", "whole"]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """A model, its arguments, what was understood of them, and how one site of it is simulated.

    A program is a pytree, so it can be an argument of a compiled function. Its leaves are the per-site arguments where
    the route is `resize`, which has shown that the model accepts them traced; all else is static, compared by
    identity where it is an array.

    Attributes:
        model: The model as the user wrote it. Every run undoes its reparameterizations.
        structure: What `hsbi.inspect` understood, at this number of sites.
        arguments: The model's arguments by parameter name, at this number of sites.
        route: How one site is simulated. `resize`: the site plate is resized and per-site arguments are gathered;
            `pick`: the prior is drawn for all sites, and the simulator called for one; `whole`: all are simulated.
        reason: Why the route is not `resize`.
        by_plate: Whether the model indexes its arguments by the members of the site plate, so that a program of fewer
            sites hands out other members and leaves the arguments alone.
        indices: The members that the site plate hands out, or None to count from zero.
        input_paths: The covariates that are functional inputs.
    """

    model: Callable[..., Any]
    structure: Structure
    arguments: Mapping[str, Any]
    route: Route
    reason: str = ""
    by_plate: bool = False
    indices: Array | None = None
    input_paths: tuple[str, ...] = ()

    @property
    def num_sites(self) -> int:
        """The number of sites."""
        return self.structure.num_sites


def take_sites(program: Program, index: ArrayLike) -> Program:
    """Give the program of some of the sites.

    Args:
        program: A program of route `resize`.
        index: The sites, an integer vector whose length is the new number of sites; it may be traced, and may
            repeat a site.
    """
    if program.route != "resize":
        raise ValueError(
            f"This program cannot be run at another number of sites: {program.reason} "
            "Simulate it with simulate_sites, or change the model so that its site plate can be resized."
        )
    if jnp.ndim(index) != 1:
        raise ValueError(
            f"The site index has shape {jnp.shape(index)}, expected an integer vector with one entry per site."
        )
    return resize(program, index)


def resize(program: Program, index: ArrayLike) -> Program:
    """Take sites without asking whether the program can be resized."""
    size = jnp.shape(index)[0]
    plate = program.structure.site_plate
    if plate is None:
        if size != 1:
            raise ValueError(f"The model has no site plate and is one site, but {size} sites were asked for.")
        return program
    structure = with_num_sites(program.structure, size)
    if program.by_plate:
        members = jnp.arange(plate.size) if program.indices is None else program.indices
        return dataclasses.replace(program, structure=structure, indices=jnp.take(members, index))
    axes = {covariate.path: covariate.axis for covariate in program.structure.covariates}

    def gather(path: str, leaf: Any) -> Any:
        if path not in axes:
            return leaf
        if isinstance(leaf, np.ndarray) and isinstance(index, np.ndarray):
            return np.take(leaf, index, axis=axes[path])
        return jnp.take(leaf, index, axis=axes[path])

    return dataclasses.replace(program, structure=structure, arguments=map_leaves(gather, program.arguments))


def with_num_sites(structure: Structure, size: int) -> Structure:
    """Give the structure that the program would have at another number of sites."""
    plate = structure.site_plate
    if plate is None or plate.size == size:
        return structure

    def with_size(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
        axis %= len(shape)
        return (*shape[:axis], size, *shape[axis + 1 :])

    def resize_site(site: Site) -> Site:
        if plate.name not in site.plates:
            return site
        position = site.plates.index(plate.name)
        return dataclasses.replace(
            site,
            shape=with_size(site.shape, position),
            program_shape=with_size(site.program_shape, site.plate_axes[position]),
        )

    def resize_covariate(covariate: Covariate) -> Covariate:
        return dataclasses.replace(covariate, shape=with_size(covariate.shape, covariate.axis))

    return dataclasses.replace(
        structure,
        sites=tuple(resize_site(site) for site in structure.sites),
        plates=tuple(dataclasses.replace(p, size=size) if p.name == plate.name else p for p in structure.plates),
        covariates=tuple(resize_covariate(covariate) for covariate in structure.covariates),
    )


def map_leaves(function: Callable[[str, Any], Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Apply a function of path and leaf to every leaf of the arguments."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: function(leaf_path(path), leaf), dict(arguments), is_leaf=lambda leaf: leaf is None
    )


def leaf_path(path: tuple[Any, ...]) -> str:
    """Name the place of a leaf in the arguments, such as `sigma` or `data['x']`."""
    return str(path[0].key) + jax.tree_util.keystr(path[1:])


class _Static:
    """What of a program does not vary under JAX, comparable and hashable."""

    def __init__(self, program: Program, leaves: tuple[Any, ...], tree: Any) -> None:
        self.program, self.leaves, self.tree = program, leaves, tree
        self.facts = (program.structure, program.route, program.by_plate, program.input_paths, tree)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Static)
            and self.program.model is other.program.model
            and self.facts == other.facts
            and all(_same(ours, theirs) for ours, theirs in zip(self.leaves, other.leaves, strict=True))
        )

    def __hash__(self) -> int:
        return hash((id(self.program.model), self.facts))


def _same(ours: Any, theirs: Any) -> bool:
    if ours is theirs:
        return True
    plain = (bool, int, float, complex, str, bytes)
    return type(ours) is type(theirs) and isinstance(ours, plain) and ours == theirs


def _flatten(program: Program) -> tuple[tuple[Any, ...], _Static]:
    per_site = {covariate.path for covariate in program.structure.covariates} if program.route == "resize" else set()
    moving: list[Any] = []

    def split(path: str, leaf: Any) -> Any:
        if path not in per_site:
            return leaf
        moving.append(leaf)
        return _MOVING

    rest = map_leaves(split, program.arguments)
    leaves, tree = jax.tree.flatten(rest, is_leaf=lambda leaf: leaf is None)
    static = dataclasses.replace(program, arguments={}, indices=None)
    return (tuple(moving), program.indices), _Static(static, tuple(leaves), tree)


def _unflatten(static: _Static, children: tuple[Any, ...]) -> Program:
    moving, indices = iter(children[0]), children[1]
    leaves = [next(moving) if leaf is _MOVING else leaf for leaf in static.leaves]
    return dataclasses.replace(static.program, arguments=jax.tree.unflatten(static.tree, leaves), indices=indices)


_MOVING = object()
jax.tree_util.register_pytree_node(Program, _flatten, _unflatten)
