"""Find out what depends on what: parents by tracking arrays, independence of sites by perturbing values."""

import functools
import math
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.distributions import Distribution, biject_to
from numpyro.ops.provenance import eval_provenance

from hsbi.model.record import Frame, Recorder, Recording, Statement, base_distribution, placeholder, record
from hsbi.model.simulator import Simulator, find_simulator

# Entries that do not depend on a perturbed value come out of the same compiled code bit for bit; the allowance is for
# backends whose reductions over exact zeros round.
_RELATIVE_TOLERANCE = 1e-5
# Vectorized and remainder loops of compiled code round differently, and differences of near numbers lose digits.
_ROUNDING = 1e-4
_PREFIX = "site "
# Away from the tails, where heavy-tailed priors overflow and hide what depends on what.
_QUANTILES = (0.1, 0.9)


class Parents(NamedTuple):
    """The latents each statement depends on directly, and those that a simulator's function takes from its closure."""

    direct: dict[str, tuple[str, ...]]
    captured: dict[str, tuple[str, ...]]


class Uses(NamedTuple):
    """The statements whose distributions or functional inputs an argument reaches, and those whose data it reaches."""

    distributions: tuple[str, ...]
    data: tuple[str, ...]


class Readout(NamedTuple):
    """What a run of the program says of one sample statement.

    Attributes:
        parameters: The arrays that decide its distribution.
        value: Its value.
        mask: The mask on it, or None.
    """

    parameters: list[Any]
    value: Any
    mask: Any


class _Cut(Recorder):
    """Record data, but do not hand them on to the statements that follow, which see simulated values in their place."""

    def postprocess_message(self, msg: Any) -> None:
        super().postprocess_message(msg)
        if msg["type"] == "sample" and self.recording.statements[-1].data:
            msg["value"] = placeholder(msg["fn"])


class Probe:
    """A program bound to arguments, run under chosen values of its latents.

    Args:
        program: The program, reparameterization undone.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        observed: Names of sites observed without data.
    """

    def __init__(
        self, program: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], observed: tuple[str, ...]
    ) -> None:
        self._program = program
        self._leaves, self._tree = jax.tree.flatten((tuple(args), dict(kwargs)))
        self._observed = observed
        self._event_dims: dict[str, list[int]] = {}
        self._open: dict[int, Any] = {}
        self._run = jax.jit(self._trace_run)

    def trace(self) -> tuple[Recording, dict[str, jax.ShapeDtypeStruct]]:
        """Record the program's statements, and the shapes of its latents in program order."""
        recorder = Recorder(self._observed)

        def body() -> dict[str, Any]:
            self._record(recorder)
            return {latent.name: jnp.asarray(latent.value) for latent in recorder.recording.of_kind("latent")}

        try:
            shapes = jax.eval_shape(body)
        except Exception as error:
            _explain(error, recorder.recording)
            raise
        return recorder.recording, {latent.name: shapes[latent.name] for latent in recorder.recording.of_kind("latent")}

    def parents(self, latents: Mapping[str, Any]) -> Parents:
        """Find parents by tracking latents through the traced program."""

        def body(**values: Any) -> dict[str, tuple[list[Any], list[Any]]]:
            given = {name.removeprefix(_PREFIX): value for name, value in values.items()}
            recording = self._record(Recorder(self._observed, given))
            return {statement.name: _dependencies(statement) for statement in recording.statements}

        found = eval_provenance(body, **{_PREFIX + name: value for name, value in latents.items()})

        def names(site: str, part: int) -> tuple[str, ...]:
            union = frozenset().union(*found[site][part])
            return tuple(name for name in latents if _PREFIX + name in union and name != site)

        return Parents(
            direct={site: names(site, 0) for site in found},
            captured={site: names(site, 1) for site in found},
        )

    def open_arguments(self, arrays: Mapping[int, Any], latents: Mapping[str, Any]) -> bool:
        """Make arguments inputs of the compiled program, so that `read` can change them.

        Args:
            arrays: The arguments' arrays, by position among the leaves of `(args, kwargs)`.
            latents: Shapes of the latents.

        Returns:
            False if the program cannot be traced that way, for example because it takes sizes from their entries.
        """
        values = {name: jax.ShapeDtypeStruct(latent.shape, jnp.result_type(float)) for name, latent in latents.items()}
        try:
            jax.eval_shape(self._run, values, values, jax.ShapeDtypeStruct((), bool), dict(arrays))
        except Exception:  # whatever the program raises, it runs with its arguments closed over
            return False
        self._open = dict(arrays)
        return True

    def is_open(self, positions: Sequence[int]) -> bool:
        """Say whether all these arguments are inputs of the compiled program."""
        return all(position in self._open for position in positions)

    def uses(self, positions: Sequence[int]) -> dict[int, Uses]:
        """Find what open arguments reach, given by their positions among the leaves of `(args, kwargs)`."""

        def body(**arrays: Any) -> dict[str, tuple[list[Any], list[Any]]]:
            given = {int(name.removeprefix(_PREFIX)): value for name, value in arrays.items()}
            recording = self._record(_Cut(self._observed), given)
            return {
                s.name: ([*_dependencies(s)[0], *jax.tree.leaves(s.inputs)], jax.tree.leaves(s.value) if s.data else [])
                for s in recording.of_kind("latent", "observed")
            }

        found = eval_provenance(body, **{f"{_PREFIX}{position}": self._open[position] for position in positions})

        def reached(position: int, part: int) -> tuple[str, ...]:
            name = f"{_PREFIX}{position}"
            return tuple(site for site, parts in found.items() if any(name in names for names in parts[part]))

        return {position: Uses(reached(position, 0), reached(position, 1)) for position in positions}

    def draw(self, seed: int, latents: Mapping[str, Any]) -> dict[str, Array]:
        """Draw all latents from the middle of their priors.

        Quantiles go through the priors' inverse distribution functions in the very code that `read` runs: samplers
        would have to be compiled, which takes longer than all else here.
        """
        rng = np.random.default_rng(seed)
        quantiles = {name: rng.uniform(*_QUANTILES, latent.shape) for name, latent in latents.items()}
        readouts = self._run(_as_floats(quantiles), _as_floats(quantiles), jnp.asarray(False), self._open)
        return {name: readouts[name].value for name in latents}

    def read(self, values: Mapping[str, Array], arrays: Mapping[int, Any] | None = None) -> dict[str, Readout]:
        """Run the program at given latents, and read every sample statement.

        Args:
            values: The latents' values.
            arrays: Arrays to put in place of open arguments, by position among the leaves of `(args, kwargs)`.
        """
        values = _as_floats(values)
        return self._run(values, values, jnp.asarray(True), {**self._open, **(arrays or {})})

    def reorder(self, statement: Statement, readout: Readout, dim: int, order: np.ndarray) -> Readout:
        """Put the members along a plate's dim in another order."""

        def take(array: Any, axis: int) -> np.ndarray:
            array = np.asarray(array)
            has_axis = array.ndim >= -axis and array.shape[axis] == order.size
            return np.take(array, order, axis=axis) if has_axis else array

        dims = self._event_dims[statement.name]
        return Readout(
            parameters=[
                take(array, dim - event_dim) for array, event_dim in zip(readout.parameters, dims, strict=True)
            ],
            value=readout.value,
            mask=None if readout.mask is None else take(readout.mask, dim),
        )

    def changed(self, statement: Statement, before: Readout, after: Readout, *, rounding: bool = False) -> np.ndarray:
        """Say which members of a statement's batch have other parameters; masked members count as unchanged.

        Args:
            statement: The statement.
            before: One reading of it.
            after: Another.
            rounding: Whether an entry may have been computed at another place of its array, and rounded otherwise.
        """
        assert statement.fn is not None
        batch = np.zeros(statement.fn.batch_shape, bool)
        dims = self._event_dims[statement.name]
        for old, new, event_dim in zip(before.parameters, after.parameters, dims, strict=True):
            differs = _differs(np.asarray(old), np.asarray(new), rounding)
            differs = differs.any(axis=tuple(range(max(differs.ndim - event_dim, 0), differs.ndim)))
            batch = batch | np.broadcast_to(differs, batch.shape)
        for mask in (before.mask, after.mask):
            if mask is not None and np.ndim(mask) <= batch.ndim:
                batch = batch & np.broadcast_to(np.asarray(mask), batch.shape)
        return batch

    def _record(self, recorder: Recorder, arrays: Mapping[int, Any] | None = None) -> Recording:
        leaves = [(arrays or {}).get(position, leaf) for position, leaf in enumerate(self._leaves)]
        args, kwargs = jax.tree.unflatten(self._tree, leaves)
        return record(self._program, args, kwargs, recorder)

    def _trace_run(
        self, values: dict[str, Array], quantiles: dict[str, Array], use_values: Array, arrays: dict[int, Array]
    ) -> dict[str, Readout]:
        def choose(name: str) -> Callable[[Distribution], Array]:
            return lambda fn: jnp.where(use_values, values[name], _at_quantile(fn, quantiles[name]))

        recording = self._record(Recorder(self._observed, {name: choose(name) for name in values}), arrays)
        readouts = {}
        for statement in recording.of_kind("latent", "observed"):
            parameters, event_dims = _parameters(statement)
            self._event_dims[statement.name] = event_dims
            mask = None if statement.mask is None else jnp.asarray(statement.mask)
            readouts[statement.name] = Readout(parameters, jnp.asarray(statement.value), mask)
        return readouts


def _as_floats(values: Mapping[str, Any]) -> dict[str, Array]:
    return {name: jnp.asarray(value, jnp.result_type(float)) for name, value in values.items()}


def _at_quantile(fn: Distribution, quantiles: Array) -> Array:
    """Give the value at a quantile of a univariate prior, or a value of the support made from the quantiles."""
    base = base_distribution(fn)
    if base.event_dim == 0:
        try:
            return jnp.broadcast_to(base.icdf(quantiles), quantiles.shape)
        except (NotImplementedError, ImportError):  # some inverses need TensorFlow Probability
            pass
    try:
        transform = biject_to(fn.support)
    except NotImplementedError:
        seed = jnp.sum(quantiles * 2**16).astype(jnp.uint32)
        return jnp.asarray(fn.sample(jax.random.fold_in(jax.random.key(0), seed)))
    lead = quantiles.shape[: quantiles.ndim - fn.event_dim]
    shape = transform.inverse_shape(quantiles.shape)
    size = math.prod(shape[len(lead) :])
    flat = jax.scipy.special.logit(quantiles).reshape((*lead, -1))[..., :size]
    return transform(flat.reshape(shape))


def _explain(error: Exception, recording: Recording) -> None:
    """Tell where the program was when it failed, and what to do about the two usual reasons."""
    last = recording.statements[-1].name if recording.statements else None
    place = f"after site {last!r}" if last else "before its first site"
    sizes = ", ".join(f"{name!r} of size {size}" for name, size, _ in dict.fromkeys(recording.plates)) or "none"
    if isinstance(error, jax.errors.ConcretizationTypeError | jax.errors.TracerArrayConversionError):
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"The model asks for the number behind a traced value, {place}, so it cannot be compiled. {reason} "
            "Use jnp.where or lax.cond in place of Python's if, and NumPy for sizes that come from arguments."
        ) from error
    if isinstance(error, TypeError | ValueError) and "ncompatible shapes" in str(error):
        raise ValueError(
            f"Shapes do not fit together in the model, {place}: {error} Its plates are {sizes}. "
            "Give every argument one row per member of its plate, and nested plates different dims."
        ) from error
    error.add_note(f"hsbi was tracing the model, {place}; its plates so far: {sizes}.")


def _dependencies(statement: Statement) -> tuple[list[Any], list[Any]]:
    """Give the arrays through which a statement depends on others, and those in a simulator's closure."""
    if statement.fn is None:
        return jax.tree.leaves(statement.value), []
    found = find_simulator(statement.fn)
    captured = [] if found is None else _arrays(found[0].fn, set())
    return _arrays(base_distribution(statement.fn), set()), captured


def _arrays(node: Any, seen: set[int]) -> list[Any]:
    """Collect arrays from the attributes of distributions, transforms and constraints, and from closures.

    A distribution's pytree may leave parameters out; its attributes do not.
    """
    if id(node) in seen or isinstance(node, str | bytes | type | types.ModuleType):
        return []
    seen.add(id(node))
    if isinstance(node, Array):
        return [node]
    if isinstance(node, Mapping):
        children = list(node.values())
    elif isinstance(node, list | tuple):
        children = list(node)
    elif isinstance(node, functools.partial):
        children = [node.func, node.args, node.keywords]
    elif hasattr(node, "__closure__"):
        children = list(_closure(node))
    elif hasattr(node, "__dict__") and not type(node).__module__.startswith("jax"):
        children = list(vars(node).values())
    else:
        return []
    return [leaf for child in children for leaf in _arrays(child, seen)]


def _closure(function: Any) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # an empty cell, of a name not yet assigned
            continue


def _parameters(statement: Statement) -> tuple[list[Array], list[int]]:
    """Give the arrays that decide a distribution, and how many of each one's axes lie inside one batch member.

    Known parameters are taken as they are. Other distributions are told apart by their log density, or by a draw.
    """
    fn = statement.fn
    assert fn is not None
    base = base_distribution(fn)
    extra = fn.event_dim - base.event_dim
    if isinstance(base, Simulator):
        return list(base.params), [dims + extra for dims in base.param_event_dims]
    known = {name: vars(base).get(name) for name in base.arg_constraints}
    arrays = {name: jnp.asarray(value) for name, value in known.items() if value is not None}
    dims = [_event_dim(base.arg_constraints[name]) for name in arrays]
    listed = {id(value) for value in known.values()}
    if arrays and None not in dims and all(id(leaf) in listed for leaf in _arrays(base, set())):
        return list(arrays.values()), [dim + extra for dim in dims if dim is not None]
    try:
        return [jnp.asarray(fn.log_prob(statement.value if statement.kind == "latent" else placeholder(fn)))], [0]
    except NotImplementedError:
        return [jnp.asarray(fn.sample(jax.random.key(0)))], [fn.event_dim]


def _event_dim(constraint: Any) -> int | None:
    try:
        return constraint.event_dim
    except NotImplementedError:
        return None


def _differs(old: np.ndarray, new: np.ndarray, rounding: bool) -> np.ndarray:
    if old.dtype.kind not in "fc":
        return old != new
    with np.errstate(invalid="ignore"):
        scale = np.maximum(np.abs(old), np.abs(new))
        finite = scale[np.isfinite(scale)]
        tolerance = _ROUNDING * finite.max(initial=0.0) if rounding else _RELATIVE_TOLERANCE * scale
        close = np.abs(old - new) <= tolerance
    return ~(close | (old == new) | (np.isnan(old) & np.isnan(new)))


def split_masks(size: int) -> Iterator[np.ndarray]:
    """Give subsets of `size` members such that every ordered pair is separated by one: bits, and their complements."""
    index = np.arange(size)
    for bit in range(max(size - 1, 1).bit_length()):
        mask = (index >> bit) & 1 == 1
        yield mask
        yield ~mask


def mix(value: Array, other: Array, mask: np.ndarray, axis: int) -> Array:
    """Take the entries of `other` where the mask along an axis says so."""
    shape = [1] * np.ndim(value)
    shape[axis] = mask.size
    return jnp.where(mask.reshape(shape), other, value)


def plate_axis(statement: Statement, frame: Frame) -> int:
    """Give the axis of a plate in a statement's value."""
    return frame.dim - statement.event_dim


def frame_of(statement: Statement, plate: str) -> Frame | None:
    """Find a plate around a statement."""
    return next((frame for frame in statement.frames if frame.name == plate), None)
