"""What a NumPyro program turned out to be: its sites, plates and levels, as static facts."""

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Level = Literal["global", "local", "observation", "deterministic"]
Role = Literal["site", "replicate", "other"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plate:
    """One plate of the program.

    Attributes:
        name: The plate's name.
        size: Its number of members.
        dim: Its batch dimension as NumPyro counts it, negative from the right.
        role: `site` for the plate of sites, `replicate` for one inside it that carries observations only,
            `other` for the rest.
    """

    name: str
    size: int
    dim: int
    role: Role = "other"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Site:
    """One sample or deterministic statement of the program.

    A value has two layouts. The *program* layout is what the statement returns. The *canonical* layout has one axis per
    plate in the order of `plates`, the site plate first, then the event; singleton axes left by plates at outer
    dims are gone.

    Attributes:
        name: The site's name.
        level: Where it stands in the hierarchy.
        plates: Names of the plates around it, the site plate first, then from outer to inner.
        shape: The canonical shape.
        event_shape: The event's shape, the tail of `shape`.
        program_shape: The shape of the value in the program.
        plate_axes: The axis of each plate in the program layout, negative from the right, in the order of `plates`.
        distribution: The distribution's class name, such as `Normal` or `Simulator`; empty for a deterministic.
        support: The support in words, such as `real`, `positive`, `interval(0, 1)`; empty for a deterministic.
        discrete: Whether values are integers.
        parents: Names of the latent sites it depends on directly.
        num_coordinates: The number of free numbers of a latent: in all for a global, per site for a local.
        inputs: The shape of its functional inputs, or None.
        missing: How many of its values are missing in the data, or None when no data were given.
    """

    name: str
    level: Level
    plates: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    event_shape: tuple[int, ...] = ()
    program_shape: tuple[int, ...] = ()
    plate_axes: tuple[int, ...] = ()
    distribution: str = ""
    support: str = ""
    discrete: bool = False
    parents: tuple[str, ...] = ()
    num_coordinates: int = 0
    inputs: tuple[int, ...] | None = None
    missing: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Covariate:
    """A model argument, or an array inside one, that has one entry per site.

    Attributes:
        path: Its place in the model's arguments, such as `sigma` or `data['x']`.
        axis: The axis that runs over sites.
        shape: Its shape.
        data: The observation it is the data of, or None for a covariate proper.
    """

    path: str
    axis: int
    shape: tuple[int, ...]
    data: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Structure:
    """What `hsbi.inspect` understood of a program bound to arguments.

    Attributes:
        sites: Every sample and deterministic statement, in program order.
        plates: The plates around them, the site plate first, then in program order.
        covariates: Arguments with one entry per site, the observations' data among them.
        notes: The warnings that inspection gave.
    """

    sites: tuple[Site, ...]
    plates: tuple[Plate, ...] = ()
    covariates: tuple[Covariate, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def globals(self) -> tuple[str, ...]:
        """Names of the latents that all sites share."""
        return self._names("global")

    @property
    def locals(self) -> tuple[str, ...]:
        """Names of the latents that each site has of its own."""
        return self._names("local")

    @property
    def observations(self) -> tuple[str, ...]:
        """Names of the observed or simulated sites."""
        return self._names("observation")

    @property
    def deterministics(self) -> tuple[str, ...]:
        """Names of the deterministic sites."""
        return self._names("deterministic")

    @property
    def site_plate(self) -> Plate | None:
        """The plate of sites, or None where the program has none and is one site."""
        return next((plate for plate in self.plates if plate.role == "site"), None)

    @property
    def num_sites(self) -> int:
        """The number of sites, 1 without a site plate."""
        return 1 if self.site_plate is None else self.site_plate.size

    @property
    def replicate_plates(self) -> tuple[Plate, ...]:
        """The plates inside the site plate that carry observations only."""
        return tuple(plate for plate in self.plates if plate.role == "replicate")

    def __getitem__(self, name: str) -> Site:
        for site in self.sites:
            if site.name == name:
                return site
        raise KeyError(f"No site {name!r} in the model. Its sites are {', '.join(site.name for site in self.sites)}.")

    def without_data(self) -> "Structure":
        """Leave out what depends on the values of the data: the numbers of missing values, and notes."""
        sites = tuple(dataclasses.replace(site, missing=None) for site in self.sites)
        return dataclasses.replace(self, sites=sites, notes=())

    def fingerprint(self) -> str:
        """Hash what is static, so that equal programs with equal shapes have equal fingerprints.

        The values of data and arguments do not enter, and neither do missing values or notes.
        """
        facts = dataclasses.asdict(self)
        del facts["notes"]
        for site in facts["sites"]:
            del site["missing"]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def __str__(self) -> str:
        from hsbi.model.table import format_table

        return format_table(self)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the plate diagram.

        Args:
            ax: Where to draw; a new figure of fitting size by default.

        Returns:
            The axes with the diagram.
        """
        from hsbi.model.diagram import draw

        return draw(self, ax)

    def _names(self, level: Level) -> tuple[str, ...]:
        return tuple(site.name for site in self.sites if site.level == level)
