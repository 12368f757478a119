"""Run a NumPyro program with its latents and observations under control."""

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from numpyro import handlers
from numpyro.distributions import Distribution, constraints
from numpyro.distributions.distribution import validation_enabled
from numpyro.primitives import Messenger

from hsbi.model.record import placeholder, undo_reparam
from hsbi.model.structure import Site, Structure

if TYPE_CHECKING:
    from hsbi.model.program import Program


class Visit(NamedTuple):
    """One `sample` statement as the program reached it.

    Attributes:
        site: The static facts of the site.
        fn: Its distribution, with all plates around it.
        shape: The shape of its value in the program.
        key: The random key of this visit.
        data: The value it is observed at, or None.
        inputs: Its functional inputs, or None.
    """

    site: Site
    fn: Distribution
    shape: tuple[int, ...]
    key: Array
    data: ArrayLike | None
    inputs: Any

    @property
    def support(self) -> constraints.Constraint:
        """Where the values lie, given the parents'."""
        assert self.fn.support is not None
        return self.fn.support


class Execution(NamedTuple):
    """The values of one run by site name, in the layout of the program."""

    latents: dict[str, Array]
    observations: dict[str, Array]
    deterministics: dict[str, Array]


Handler = Callable[[Visit], ArrayLike | None]


def stand_in(visit: Visit) -> Array:
    """Give some value to an observation that is not simulated."""
    return placeholder(visit.fn)


def keep_data(visit: Visit) -> ArrayLike:
    """Keep an observation at its data, where there are any."""
    return stand_in(visit) if visit.data is None else visit.data


def draw(visit: Visit) -> None:
    """Let the program draw the visit."""
    return None


def call(model: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call a model with its arguments by name, as `bind_arguments` gives them."""
    signature = inspect.signature(model)
    named = {name: value for name, value in arguments.items() if name in signature.parameters}
    extra = {name: value for name, value in arguments.items() if name not in signature.parameters}
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            named[parameter.name] = extra
    bound = inspect.BoundArguments(signature, named)  # pyright: ignore[reportArgumentType]
    return model(*bound.args, **bound.kwargs)


def execute(program: "Program", key: Array, *, latent: Handler = draw, observe: Handler = stand_in) -> Execution:
    """Run the program once.

    The key of a statement is a function of `key` and the site alone, so a draw does not depend on which other sites
    are drawn.

    Args:
        program: The model bound to its arguments; its reparameterizations are undone.
        key: The key of this run.
        latent: Gives the value of a latent statement; None draws it from its distribution.
        observe: The same for observations.
    """
    messenger = _Execute(program.structure, key, latent, observe, program.indices)
    seeded = handlers.seed(rng_seed=jax.random.fold_in(key, len(program.structure.sites)))
    # Outside a compiled function NumPyro would raise where a draw of a scale underflows to zero.
    with validation_enabled(False), seeded, messenger:
        call(undo_reparam(program.model), program.arguments)
    return Execution(messenger.latents, messenger.observations, messenger.deterministics)


class _Execute(Messenger):
    """Resize the site plate, set or draw every site, and collect the values."""

    def __init__(
        self, structure: Structure, key: Array, latent: Handler, observe: Handler, indices: Array | None
    ) -> None:
        self.plate = structure.site_plate
        self.indices = indices
        self.positions = {site.name: position for position, site in enumerate(structure.sites)}
        self.sites = {site.name: site for site in structure.sites}
        self.key = key
        self.choose = {"global": latent, "local": latent, "observation": observe}
        self.latents: dict[str, Array] = {}
        self.observations: dict[str, Array] = {}
        self.deterministics: dict[str, Array] = {}
        super().__init__()

    def process_message(self, msg: Any) -> None:
        """Set the size of the site plate and the values of known sites."""
        if msg["type"] == "plate" and self.plate is not None and msg["name"] == self.plate.name:
            msg["args"] = (self.plate.size, None)
            msg["value"] = jnp.arange(self.plate.size) if self.indices is None else self.indices
        elif msg["type"] == "sample":
            self._sample(msg)

    def postprocess_message(self, msg: Any) -> None:
        """Collect the values."""
        if msg["type"] == "deterministic":
            site = self.sites.get(msg["name"])
            if site is not None and site.level == "deterministic":
                self.deterministics[site.name] = jnp.asarray(msg["value"])
        elif msg["type"] == "sample":
            site = self.sites.get(msg["name"])
            if site is None or site.level not in self.choose:
                return
            kept = self.observations if site.level == "observation" else self.latents
            kept[site.name] = jnp.asarray(msg["value"])

    def _sample(self, msg: Any) -> None:
        site = self.sites.get(msg["name"])
        if site is None or site.level not in self.choose:
            return
        fn = msg["fn"]
        shape = tuple(msg["kwargs"].get("sample_shape", ())) + tuple(fn.shape())
        key = jax.random.fold_in(self.key, self.positions[site.name])
        visit = Visit(site, fn, shape, key, msg["value"], msg["infer"].get("inputs"))
        msg["value"] = self.choose[site.level](visit)
        msg["is_observed"] = False
        msg["kwargs"]["rng_key"] = key
