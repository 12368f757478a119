"""How a zoo model and its expected structure are written down."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class SiteFacts:
    """What a reader of the program expects of one statement.

    Attributes:
        name: The site's name.
        level: `global`, `local`, `observation` or `deterministic`.
        plates: The plates around it, site plate first.
        shape: The canonical shape.
        event: The event shape.
        support: The support's name with its bounds; `name(...)` leaves the bounds open; empty for a deterministic.
        parents: The latent sites it depends on directly, in any order.
        program: The shape in the program; None where it is the canonical one.
        axes: The plates' axes in the program; None where plates lead in canonical order.
        distribution: The distribution's class name, or None to leave it open.
        discrete: Whether values are integers.
        inputs: The shape of the functional inputs, or None.
        missing: The number of missing values, or None without data.
    """

    name: str
    level: str
    plates: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    event: tuple[int, ...] = ()
    support: str = ""
    parents: tuple[str, ...] = ()
    program: tuple[int, ...] | None = None
    axes: tuple[int, ...] | None = None
    distribution: str | None = None
    discrete: bool = False
    inputs: tuple[int, ...] | None = None
    missing: int | None = None

    @property
    def program_shape(self) -> tuple[int, ...]:
        return self.shape if self.program is None else self.program

    @property
    def plate_axes(self) -> tuple[int, ...]:
        if self.axes is not None:
            return self.axes
        return tuple(index - len(self.program_shape) for index in range(len(self.plates)))


def glob(name: str, support: str = "real", parents: tuple[str, ...] = (), **facts: Any) -> SiteFacts:
    """Write down a global."""
    return SiteFacts(name=name, level="global", support=support, parents=parents, **facts)


def local(name: str, shape: tuple[int, ...], support: str = "real", **facts: Any) -> SiteFacts:
    """Write down a local; its plate is `site` unless said otherwise."""
    return SiteFacts(name=name, level="local", shape=shape, support=support, **{"plates": ("site",), **facts})


def obs(name: str, shape: tuple[int, ...], support: str = "real", **facts: Any) -> SiteFacts:
    """Write down an observation with complete data in the plate `site` unless said otherwise."""
    defaults: dict[str, Any] = {"plates": ("site",), "missing": 0}
    return SiteFacts(name=name, level="observation", shape=shape, support=support, **{**defaults, **facts})


def det(name: str, shape: tuple[int, ...], parents: tuple[str, ...], **facts: Any) -> SiteFacts:
    """Write down a deterministic."""
    return SiteFacts(name=name, level="deterministic", shape=shape, parents=parents, **facts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlateFacts:
    """What a reader of the program expects of one plate."""

    name: str
    size: int
    dim: int = -1
    role: str = "site"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CovariateFacts:
    """An argument with one entry per site; `data` names the observation whose data it is."""

    path: str
    shape: tuple[int, ...]
    axis: int = 0
    data: str | None = None


def covariate(path: str, *shape: int, axis: int = 0) -> CovariateFacts:
    """Write down a per-site argument."""
    return CovariateFacts(path=path, shape=shape, axis=axis)


def data(path: str, *shape: int, axis: int = 0, of: str = "") -> CovariateFacts:
    """Write down an argument that holds an observation's data, by default that of the site of the same name."""
    return CovariateFacts(path=path, shape=shape, axis=axis, data=of or path)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Expected:
    """The structure of a model, written by hand from its program.

    Attributes:
        sites: All statements in program order.
        plates: All plates, in any order.
        covariates: All per-site arguments, in any order.
        warns: A pattern of the warning that inspection must give, or None.
    """

    sites: tuple[SiteFacts, ...]
    plates: tuple[PlateFacts, ...] = ()
    covariates: tuple[CovariateFacts, ...] = ()
    warns: str | None = None

    def level(self, level: str) -> tuple[str, ...]:
        return tuple(site.name for site in self.sites if site.level == level)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refusal:
    """A refusal: words that the message must have, and a pattern of the reason."""

    names: tuple[str, ...]
    says: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One model of the zoo with the arguments to call it.

    Attributes:
        name: The case's name, the id of its tests.
        model: The NumPyro program.
        args: Positional arguments.
        kwargs: Keyword arguments.
        observed: The names passed to `inspect` as observed.
        expected: The structure, or the refusal.
        route: How one site is simulated: `resize`, `pick` or `whole`.
        calls: The simulator calls of one single-site simulation.
        counter: A host simulator with a `count`, where the model has one.
    """

    name: str
    model: Callable[..., Any]
    expected: Expected | Refusal
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    observed: tuple[str, ...] = ()
    route: str = "resize"
    calls: int = 1
    counter: Any = None
