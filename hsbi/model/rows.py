"""One run of a program as a row of arrays, with host calls left to be made, and how many rows fit at once."""

import dataclasses
import math
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from numpyro.distributions import constraints
from numpyro.ops.provenance import eval_provenance

from hsbi.model.calls import HostCalls
from hsbi.model.execution import Handler, Visit, execute, stand_in
from hsbi.model.program import Program, with_num_sites
from hsbi.model.simulator import Simulator, find_simulator
from hsbi.model.structure import Structure
from hsbi.model.trace import canonicalize

# Rows that run at once are bounded by memory (in numbers, temporaries included) and by what still gains speed.
_MAX_NUMBERS, _TEMPORARIES, _MAX_ROWS = 2**25, 8, 4096
# Drawing the latents of host calls is cheap; this many rows at once leave nothing to gain.
_MAX_HOST_ROWS = 1024


class Row(NamedTuple):
    """One run, or many with rows first: values in canonical layout, and host calls missing from the observations."""

    values: dict[str, Array]
    observations: dict[str, Array]
    calls: dict[str, HostCalls]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What running a program means for its simulators.

    Attributes:
        traced_calls: Calls per site that run inside JAX; one where no observation is a `Simulator`.
        host_calls: Calls per site that are made outside JAX.
        hosts: The host simulators to be called outside JAX, by observation.
        counts: The supports of simulators of counts; None where they depend on parameters.
    """

    traced_calls: int
    host_calls: int
    hosts: dict[str, Simulator]
    counts: dict[str, constraints.Constraint | None]

    @property
    def calls(self) -> int:
        """The calls of one site."""
        return self.traced_calls + self.host_calls


def make_plan(program: Program) -> Plan:
    """Find the simulators of a program, and which of them are called outside JAX.

    Host simulators are, unless one observation depends on another: then they run in the order of the program, as
    callbacks.
    """
    found: dict[str, tuple[Simulator, int]] = {}

    def observe(visit: Visit) -> Array:
        simulator = find_simulator(visit.fn)
        if simulator is not None:
            found[visit.site.name] = (simulator[0], math.prod(simulator[1]) // program.num_sites)
        return stand_in(visit)

    jax.eval_shape(lambda: execute(program, jax.random.key(0), observe=observe).latents)
    hosts = {name: simulator for name, (simulator, _) in found.items() if simulator.host}
    if hosts and _observations_are_chained(program):
        hosts = {}
    host_calls = sum(count for name, (_, count) in found.items() if name in hosts)
    total = sum(count for _, count in found.values()) if found else 1
    counts = {
        name: simulator.support if simulator.has_static_support else None
        for name, (simulator, _) in found.items()
        if simulator.is_discrete
    }
    return Plan(traced_calls=total - host_calls, host_calls=host_calls, hosts=hosts, counts=counts)


def _observations_are_chained(program: Program) -> bool:
    """Say whether the distribution of an observation depends on the value of another."""
    prefix = "observation "
    structure = program.structure
    shapes = {
        prefix + name: jax.ShapeDtypeStruct(
            structure[name].program_shape, jnp.result_type(int if structure[name].discrete else float)
        )
        for name in structure.observations
    }

    def body(**values: Array) -> list[Array]:
        leaves: list[Array] = []

        def observe(visit: Visit) -> Array:
            simulator = find_simulator(visit.fn)
            leaves.extend(jax.tree.leaves(visit.fn if simulator is None else simulator[0].params))
            return values[prefix + visit.site.name]

        execute(program, jax.random.key(0), observe=observe)
        return leaves

    return len(shapes) > 1 and any(eval_provenance(body, **shapes))


def run_once(program: Program, key: Array, latent: Handler, collect: bool, pick: Array | None = None) -> Row:
    """Run a program once.

    Args:
        program: The program.
        key: The key of this run.
        latent: Gives the values of latents.
        collect: Whether host simulators are left to be called outside JAX.
        pick: The only site to simulate, whose values alone are kept; all sites by default.
    """
    calls: dict[str, HostCalls] = {}
    picked: dict[str, Array] = {}

    def observe(visit: Visit) -> ArrayLike | None:
        found = find_simulator(visit.fn)
        if found is None:
            return None
        simulator, batch_shape = found
        if pick is not None:
            simulator = simulator.take(pick[None], visit.site.plate_axes[0] + simulator.event_dim, batch_shape)
            batch_shape = simulator.batch_shape
        if collect and simulator.host:
            calls[visit.site.name] = _lay_out_calls(simulator, batch_shape, visit.key)
            return stand_in(visit)
        if pick is None:
            return None
        picked[visit.site.name] = simulator.sample(visit.key)
        return _put(stand_in(visit), picked[visit.site.name], pick, visit.site.plate_axes[0])

    run = execute(program, key, latent=latent, observe=observe)
    values = {name: canonicalize(program.structure[name], value) for name, value in run.latents.items()}
    if pick is None:
        structure = program.structure
        drawn = {name: value for name, value in run.observations.items() if name not in calls}
    else:
        structure, drawn = with_num_sites(program.structure, 1), picked
        values = {name: value[pick][None] if has_sites(structure, name) else value for name, value in values.items()}
    return Row(values, {name: canonicalize(structure[name], value) for name, value in drawn.items()}, calls)


def _put(whole: Array, part: Array, site: Array, axis: int) -> Array:
    """Set one site of an array, as a later observation of that site may depend on it."""
    rows = jnp.moveaxis(whole, axis, 0)
    return jnp.moveaxis(rows.at[site].set(jnp.moveaxis(part, axis, 0)[0].astype(whole.dtype)), 0, axis)


def has_sites(structure: Structure, name: str) -> bool:
    """Say whether a site's canonical layout has a site axis."""
    plate = structure.site_plate
    return plate is not None and plate.name in structure[name].plates


def _lay_out_calls(simulator: Simulator, batch_shape: tuple[int, ...], key: Array) -> HostCalls:
    """Give keys and parameters of all calls of a host simulator, with the keys that `Simulator.sample` uses."""
    typed = key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)
    numbers = jnp.arange(math.prod(batch_shape), dtype=jnp.uint32)
    words = jax.random.key_data(jax.vmap(jax.random.fold_in, (None, 0))(typed, numbers))
    params = tuple(
        jnp.broadcast_to(value, batch_shape + value.shape[value.ndim - dims :])
        for value, dims in zip(simulator.params, simulator.param_event_dims, strict=True)
    )
    return HostCalls(words.reshape(*batch_shape, words.shape[-1]), params)


def visit_sites(key: Array, num_sites: int, num_simulations: int) -> Array:
    """Order sites in shuffled cycles, so that each is visited equally often up to one."""
    words = np.asarray(jax.random.key_data(key)).ravel().tolist()
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence(words)))
    cycles = -(-num_simulations // num_sites)
    return jnp.asarray(np.concatenate([rng.permutation(num_sites) for _ in range(cycles)])[:num_simulations])


def chunk(total: int, most: int) -> Iterator[range]:
    """Split rows into chunks of one size, with a remainder only where no size above half of `most` divides them.

    Rows are never padded, as every row is a simulation; a remainder costs a second compile.
    """
    most = min(most, total)
    size = next((size for size in range(most, most // 2, -1) if total % size == 0), most)
    for start in range(0, total, size):
        yield range(start, min(start + size, total))


def default_chunk_size(plan: Plan, structure: Structure) -> int:
    """Bound the rows that run at once, by the memory of one row of the given structure."""
    numbers = sum(math.prod(site.shape) for site in structure.sites)
    most = _MAX_HOST_ROWS if plan.hosts else _MAX_ROWS
    return max(1, min(most, _MAX_NUMBERS // (_TEMPORARIES * numbers)))
