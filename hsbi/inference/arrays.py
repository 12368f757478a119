"""How the latents and observations of a program become standardized arrays, and come back."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from numpyro.distributions import constraints

from hsbi.model.coordinates import constrain, constrain_with_prior, coordinate_sizes, unconstrain
from hsbi.model.data import functional_inputs, observation_masks, site_covariates
from hsbi.model.draws import draw_latents
from hsbi.model.execution import Visit, execute, stand_in
from hsbi.model.program import Program
from hsbi.model.structure import Structure
from hsbi.model.transforms import Standardizer, fit_standardizer
from hsbi.training import jit

# Prior draws that standardize coordinates: the error of a robust scale is then about one percent.
_NUM_PRIOR_DRAWS = 4096


class Latents(NamedTuple):
    """Latents of one data set, or of many with leading axes, as standardized coordinates.

    Attributes:
        globals: `[..., d_g]`.
        locals: `[..., S, d_l]`.
    """

    globals: Array
    locals: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Coordinates:
    """Standardized coordinates of a program's latents.

    Attributes:
        sizes: Name and number of coordinates of each latent, globals first.
        globals: Centre and scale of the globals' coordinates, `[d_g]`.
        locals: Centre and scale of the locals' coordinates, `[d_l]`.
        values: Centre and scale of the globals' values, `[k]`, which networks see beside the coordinates.
    """

    sizes: tuple[tuple[str, str, int], ...] = dataclasses.field(metadata={"static": True})
    globals: Standardizer
    locals: Standardizer
    values: Standardizer

    def dim(self, level: str) -> int:
        """Count the coordinates of a level."""
        return sum(size for _, kind, size in self.sizes if kind == level)

    def names(self, level: str) -> tuple[str, ...]:
        """Name the latents of a level."""
        return tuple(name for name, kind, _ in self.sizes if kind == level)

    def encode(self, program: Program, values: Mapping[str, Array]) -> Latents:
        """Give the coordinates of one draw of values."""
        raw = join(self.sizes, unconstrain(program, values), program.num_sites)
        return Latents(self.globals.standardize(raw.globals), self.locals.standardize(raw.locals))

    def decode(self, program: Program, latents: Latents) -> dict[str, Array]:
        """Give the values of one draw in canonical layout; the inverse of `encode`."""
        raw = Latents(self.globals.unstandardize(latents.globals), self.locals.unstandardize(latents.locals))
        return constrain(program, split(self.sizes, raw))

    def decode_with_prior(self, program: Program, latents: Latents) -> tuple[dict[str, Array], Array, Array]:
        """Give the values of one draw, and the log prior densities of globals and of each site's locals, `[S]`.

        Densities are those of the coordinates, up to a constant.
        """
        raw = Latents(self.globals.unstandardize(latents.globals), self.locals.unstandardize(latents.locals))
        return constrain_with_prior(program, split(self.sizes, raw))

    def global_features(self, values: Mapping[str, Array]) -> Array:
        """Give standardized values of the globals of one draw, `[k]`."""
        return self.values.standardize(_flat_globals(self.names("global"), values))


def fit_coordinates(program: Program, key: Array) -> Coordinates:
    """Standardize the coordinates of a program by draws from its prior."""
    structure = program.structure
    number = coordinate_sizes(program)
    sizes = tuple((name, "global", number[name]) for name in structure.globals)
    sizes += tuple((name, "local", number[name]) for name in structure.locals)
    num_draws = max(64, min(_NUM_PRIOR_DRAWS, 2**22 // max(1, program.num_sites)))
    drawn, values = _draw_coordinates(program, key, num_draws, sizes)
    return Coordinates(
        sizes=sizes,
        globals=fit_standardizer(drawn.globals),
        locals=fit_standardizer(drawn.locals.reshape(num_draws * program.num_sites, drawn.locals.shape[-1])),
        values=fit_standardizer(values),
    )


@functools.partial(jit, static_argnames=("num_draws", "sizes"))
def _draw_coordinates(
    program: Program, key: Array, num_draws: int, sizes: tuple[tuple[str, str, int], ...]
) -> tuple[Latents, Array]:
    values = draw_latents(program, key, num_draws)
    names = tuple(name for name, level, _ in sizes if level == "global")

    def one(draw: dict[str, Array]) -> tuple[Latents, Array]:
        return join(sizes, unconstrain(program, draw), program.num_sites), _flat_globals(names, draw)

    return jax.vmap(one)(values)


def _flat_globals(names: tuple[str, ...], values: Mapping[str, Array]) -> Array:
    return jnp.concatenate([jnp.zeros(0), *(jnp.ravel(values[name]) for name in names)])


def join(sizes: tuple[tuple[str, str, int], ...], coordinates: Mapping[str, Array], num_sites: int) -> Latents:
    """Concatenate coordinates by level."""
    return Latents(
        jnp.concatenate([jnp.zeros(0), *(coordinates[name] for name, level, _ in sizes if level == "global")]),
        jnp.concatenate(
            [jnp.zeros((num_sites, 0)), *(coordinates[name] for name, level, _ in sizes if level == "local")], axis=-1
        ),
    )


def split(sizes: tuple[tuple[str, str, int], ...], latents: Latents) -> dict[str, Array]:
    """Undo `join`."""
    coordinates: dict[str, Array] = {}
    start = {"global": 0, "local": 0}
    for name, level, size in sizes:
        source = latents.globals if level == "global" else latents.locals
        coordinates[name] = source[..., start[level] : start[level] + size]
        start[level] += size
    return coordinates


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObservationShape:
    """How one site's observation of a variable is laid out as `[replicates, points, width]`.

    Replicates are independent given the site's latents. Points are entries with functional inputs of their own. What
    remains of the event is the width.
    """

    name: str
    replicates: int
    points: int
    width: int
    parents: tuple[str, ...]

    @property
    def num_tokens(self) -> int:
        """The number of observations of the variable at a site."""
        return self.replicates * self.points


def observation_shapes(structure: Structure) -> tuple[ObservationShape, ...]:
    """Lay out every observation of a program."""

    def lay_out(name: str) -> ObservationShape:
        site = structure[name]
        has_site = structure.site_plate is not None and structure.site_plate.name in site.plates
        num_plates = len(site.plates)
        replicates = math.prod(site.shape[int(has_site) : num_plates])
        event = math.prod(site.event_shape)
        points, width = (event, 1) if site.inputs is not None and event > 1 else (1, event)
        return ObservationShape(name=name, replicates=replicates, points=points, width=width, parents=site.parents)

    return tuple(lay_out(name) for name in structure.observations)


def observation_supports(program: Program) -> dict[str, constraints.Constraint]:
    """Give the support of every observation."""
    supports: dict[str, constraints.Constraint] = {}

    def read(visit: Visit) -> Any:
        assert visit.fn.support is not None
        supports[visit.site.name] = visit.fn.support
        return stand_in(visit)

    execute(program, jax.random.key(0), observe=read)
    return supports


class Design(NamedTuple):
    """What is known of each site before it is observed.

    Attributes:
        covariates: `[S, c]`.
        inputs: Functional inputs by observation, `[S, replicates, points, d]`.
        masks: Which entries are observed, `[S, replicates, points, width]`, of observations that lack some.
    """

    covariates: Array
    inputs: dict[str, Array]
    masks: dict[str, Array] = {}  # noqa: RUF012


def read_design(program: Program) -> Design:
    """Read covariates, functional inputs and masks from a program's arguments."""
    covariates, _ = site_covariates(program)
    inputs, masks = functional_inputs(program), observation_masks(program)
    layouts = {
        shape.name: (program.num_sites, shape.replicates, shape.points, shape.width)
        for shape in observation_shapes(program.structure)
    }
    # Entries of one observation share their input; where the event is one number, its width is 1 as well.
    return Design(
        covariates,
        {name: value.reshape(*layouts[name], -1)[:, :, :, 0] for name, value in inputs.items()},
        {name: mask.reshape(layouts[name]) for name, mask in masks.items()},
    )
