"""Bind a model to its arguments and find out how one site of it can be simulated."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from hsbi.model import bijections
from hsbi.model.data import canonical_inputs
from hsbi.model.execution import Visit, execute, stand_in
from hsbi.model.program import Program, map_leaves, resize
from hsbi.model.simulator import find_simulator
from hsbi.model.structure import Covariate, Structure
from hsbi.model.trace import bind_arguments, canonicalize, inspect, restore

# Single precision in another order of operations; a wrong site is off by far more.
_RELATIVE, _ABSOLUTE = 1e-3, 1e-4
# Readings of the arguments that are tried after the one of the structure; each costs a compile.
_MAX_READINGS = 12


def bind(
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    observed: Sequence[str] = (),
    known: MutableMapping[str, Program] | None = None,
) -> Program:
    """Bind a model to its arguments and choose the route by which one site is simulated.

    A program at one site must be the whole program seen at that site: for every site, the distributions of locals
    and observations in it are compared with those of the whole program, at the same latents. Nothing is simulated
    by a `Simulator`.

    Args:
        model: The NumPyro model.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        observed: Names of sites that are observed although no data are given for them.
        known: Programs of this model without their arguments, by shapes and plain values of these. Arguments that are
            known take the same route without another comparison, which has to be compiled; others are added.
    """
    structure = inspect(model, *args, observed=observed, **kwargs)
    arguments = bind_arguments(model, args, kwargs)
    if known is None:
        return _choose_route(model, structure, arguments)
    key = structure.fingerprint() + _describe_plain(arguments)
    if key not in known:
        program = _choose_route(model, structure, arguments)
        known[key] = dataclasses.replace(program, arguments={})
        return program
    like = known[key]
    structure = dataclasses.replace(structure, covariates=like.structure.covariates)
    return dataclasses.replace(like, structure=structure, arguments=arguments)


def _describe_plain(arguments: Mapping[str, Any]) -> str:
    """Say which arguments are no arrays, and what they are: a model may take another way by them."""
    plain: list[tuple[str, Any]] = []
    map_leaves(lambda path, leaf: plain.append((path, None if hasattr(leaf, "shape") else leaf)), arguments)
    return repr(plain)


def _choose_route(model: Callable[..., Any], structure: Structure, arguments: Mapping[str, Any]) -> Program:
    """Find out how a program can be run at fewer sites."""
    program = Program(model=model, structure=structure, arguments=arguments, route="resize")
    probe = _make_probe(program)
    program = dataclasses.replace(program, input_paths=_find_inputs(program, probe))
    if structure.site_plate is None:
        return program
    reason = _why_not_resizable(program, probe)
    if not reason:
        return program
    for candidate in _other_readings(program):
        if not _why_not_resizable(candidate, probe):
            return candidate
    route = "pick" if probe.all_simulators else "whole"
    return dataclasses.replace(program, route=route, reason=reason)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Probe:
    """Values at which programs of fewer sites are compared with the whole one.

    Attributes:
        values: Latents and observations in canonical layout.
        inputs: Functional inputs in canonical layout.
        all_simulators: Whether every observation is a `Simulator`.
        fingerprints: What `_fingerprints` says of the whole program.
    """

    values: Mapping[str, Array]
    inputs: Mapping[str, Array]
    all_simulators: bool
    fingerprints: Mapping[str, Array]


def _make_probe(program: Program) -> _Probe:
    """Set every latent to some values of its support, different for each entry, as compiling random draws is slow."""
    simulators: list[bool] = []

    def latent(visit: Visit) -> Array:
        shape = bijections.unconstrained_shape(visit.support, visit.shape)
        return bijections.constrain(visit.support, jnp.sin(1.0 + 1.7 * jnp.arange(math.prod(shape))).reshape(shape))

    def probe() -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
        inputs: dict[str, Array] = {}

        def observe(visit: Visit) -> Array:
            if visit.inputs is not None:
                inputs[visit.site.name] = canonical_inputs(visit)
            simulators.append(find_simulator(visit.fn) is not None)
            return stand_in(visit)

        run = execute(program, jax.random.key(0), latent=latent, observe=observe)
        found = {**run.latents, **run.observations}
        values = {name: canonicalize(program.structure[name], value) for name, value in found.items()}
        return values, inputs, _fingerprints(program, values)

    values, inputs, fingerprints = jax.jit(probe)()
    return _Probe(values=values, inputs=inputs, all_simulators=all(simulators), fingerprints=fingerprints)


def _fingerprints(program: Program, values: Mapping[str, Array]) -> dict[str, Array]:
    """Give arrays, site axis first, that tell the distributions of locals and observations apart.

    A simulator is told by its parameters, any other distribution by its log density at the given value.
    """
    found: dict[str, Array] = {}
    plate = program.structure.site_plate

    def by_site(name: str, array: Array, batch_dim: int) -> None:
        if plate is not None and batch_dim + plate.dim >= 0:
            found[name] = jnp.moveaxis(array, batch_dim + plate.dim, 0)

    def observe(visit: Visit) -> Array:
        name, batch_dim = visit.site.name, len(visit.fn.batch_shape)
        simulator = find_simulator(visit.fn)
        value = restore(visit.site, values[name])
        if simulator is None:
            by_site(name, _log_density(visit, value), batch_dim)
        else:
            inner, batch_shape = simulator
            for position, (array, dims) in enumerate(zip(inner.params, inner.param_event_dims, strict=True)):
                full = jnp.broadcast_to(array, batch_shape + array.shape[array.ndim - dims :])
                by_site(f"{name} parameter {position}", full, batch_dim)
        if visit.inputs is not None and plate is not None:
            found[f"{name} inputs"] = canonical_inputs(visit)
        return value

    def latent(visit: Visit) -> Array:
        value = restore(visit.site, values[visit.site.name])
        if visit.site.level == "local":
            by_site(visit.site.name, _log_density(visit, value), len(visit.fn.batch_shape))
        return value

    execute(program, jax.random.key(0), latent=latent, observe=observe)
    return found


def _log_density(visit: Visit, value: Array) -> Array:
    try:
        return jnp.asarray(visit.fn.log_prob(value))
    except NotImplementedError:
        return jnp.zeros(visit.fn.batch_shape)


def _why_not_resizable(program: Program, probe: _Probe) -> str:
    """Say why a program cannot be run at fewer sites; nothing if it can."""
    plate = program.structure.site_plate
    assert plate is not None
    start = f"plate {plate.name!r} cannot be resized: "
    try:
        for size in (1, 2):
            wrong = _wrong_shapes(resize(program, jnp.zeros(size, int)))
            if wrong:
                return start + f"at {size} of {plate.size} sites, " + "; ".join(wrong) + "."
        single = jax.jit(jax.vmap(lambda index: _single_fingerprints(program, probe, index)))(jnp.arange(plate.size))
    except Exception as error:
        # The model is the user's code: at another size it may raise anything.
        return start + f"the model raised {type(error).__name__} ({str(error).splitlines()[0] if str(error) else ''})."
    for name, expected in probe.fingerprints.items():
        if not _close(single[name], expected):
            return start + f"{name!r} of a site is another distribution when the program has that site only."
    return ""


def _wrong_shapes(program: Program) -> list[str]:
    """List the sites whose shapes are not what the structure says."""
    wrong: list[str] = []

    def check(visit: Visit) -> None:
        if visit.shape != visit.site.program_shape:
            wrong.append(f"{visit.site.name!r} has shape {visit.shape}, expected {visit.site.program_shape}")

    def latent(visit: Visit) -> None:
        check(visit)

    def observe(visit: Visit) -> ArrayLike:
        check(visit)
        return stand_in(visit)

    jax.eval_shape(lambda: execute(program, jax.random.key(0), latent=latent, observe=observe).latents)
    return wrong


def _single_fingerprints(program: Program, probe: _Probe, index: Array) -> dict[str, Array]:
    taken = resize(program, index[None])
    at_site = _values_at(program.structure, probe.values, index[None])
    return jax.tree.map(lambda array: array[0], _fingerprints(taken, at_site))


def _values_at(structure: Structure, values: Mapping[str, Array], index: ArrayLike) -> dict[str, Array]:
    """Take some sites of values in canonical layout; globals stay as they are."""
    plate = structure.site_plate
    return {
        name: jnp.take(value, index, axis=0) if plate is not None and plate.name in structure[name].plates else value
        for name, value in values.items()
    }


def _close(got: ArrayLike, expected: ArrayLike) -> bool:
    got, expected = np.asarray(got), np.asarray(expected)
    return got.shape == expected.shape and np.allclose(got, expected, _RELATIVE, _ABSOLUTE, equal_nan=True)


def _other_readings(program: Program) -> Iterator[Program]:
    """List other ways in which the model may use its arguments, the likeliest first.

    It may index arrays by the members of the plate; an argument may have as many entries as there are sites by
    chance; and an array may have two axes of that length.
    """
    yield dataclasses.replace(program, by_plate=True)
    structure = program.structure
    readings: list[tuple[Covariate, ...]] = []
    for position, covariate in enumerate(structure.covariates):
        if covariate.data is not None:
            continue
        before, after = structure.covariates[:position], structure.covariates[position + 1 :]
        other_axes = [axis for axis, size in enumerate(covariate.shape) if size == structure.num_sites]
        readings += [
            (*before, dataclasses.replace(covariate, axis=axis), *after)
            for axis in other_axes
            if axis != covariate.axis
        ]
        readings.append((*before, *after))
    for covariates in readings[:_MAX_READINGS]:
        yield dataclasses.replace(program, structure=dataclasses.replace(structure, covariates=covariates))


def _find_inputs(program: Program, probe: _Probe) -> tuple[str, ...]:
    """Name the covariates that are nothing but the functional inputs of an observation."""
    candidates = {covariate.path for covariate in program.structure.covariates if covariate.data is None}
    found: list[str] = []

    def compare(path: str, leaf: Any) -> Any:
        if path in candidates:
            entries = np.ravel(np.asarray(leaf, float))
            if any(_equal(entries, np.ravel(inputs)) for inputs in probe.inputs.values()):
                found.append(path)
        return leaf

    map_leaves(compare, program.arguments)
    return tuple(found)


def _equal(ours: np.ndarray, theirs: np.ndarray) -> bool:
    return ours.size == theirs.size and np.allclose(ours, theirs, _RELATIVE, _ABSOLUTE)
