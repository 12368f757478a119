"""A black-box simulator as a NumPyro distribution."""

import contextlib
import contextvars
import copy
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from numpyro.distributions import Distribution, constraints

from hsbi.model.counts import encode_counts
from hsbi.model.host import check_output_shape, name_of, run_host
from hsbi.model.parameters import as_parameter, broadcast_batches, check_event_dims, infer_event_shape

_STUB_ACTIVE: contextvars.ContextVar[bool] = contextvars.ContextVar("hsbi_density_stub", default=False)


@contextlib.contextmanager
def density_stub() -> Iterator[None]:
    """Let `log_prob` of a density-free `Simulator` return a stub that touches value and parameters.

    NumPyro finds the parents of a site by the provenance of its `log_prob`. Inside this context that works for
    simulators too. The stub of one site is the sum of its value and its parameters: it depends on exactly what that
    site depends on, and it is no density.
    """
    token = _STUB_ACTIVE.set(True)
    try:
        yield
    finally:
        _STUB_ACTIVE.reset(token)


class Simulator(Distribution):
    """Draw observations from a function that can simulate but, usually, has no density.

    Batches follow NumPyro: the batch shape is the broadcast of the parameters' shapes without their event
    dimensions, and every member of the batch is one independent call of `fn`.

    Examples:
        >>> def epidemic(key, beta, times):
        ...     return jnp.exp(beta * times) + jax.random.normal(key, times.shape)
        >>> Simulator(epidemic, jnp.ones(4), jnp.linspace(0.0, 1.0, 7), param_event_dims=(0, 1)).event_shape
        (7,)
    """

    pytree_data_fields = ("params", "_support_arrays")
    pytree_aux_fields = ("fn", "host", "density", "param_event_dims", "_support_static", "_declared")
    params: tuple[Array, ...]

    def __init__(
        self,
        fn: Callable[..., Any],
        *params: ArrayLike,
        param_event_dims: Sequence[int] | None = None,
        event_shape: Sequence[int] | None = None,
        support: constraints.Constraint = constraints.real,
        host: bool = False,
        log_prob: Callable[..., ArrayLike] | None = None,
        validate_args: bool | None = None,
    ) -> None:
        """Bind a simulator to its parameters.

        Args:
            fn: One site's simulation, `fn(key, *params)` in JAX, or `fn(rng, *params)` in any Python with a
                `numpy.random.Generator` when `host` is set.
            *params: Arrays or scalars. Each may have batch dimensions in front of its event dimensions.
            param_event_dims: How many trailing dimensions of each parameter go whole into one call; none by default.
            event_shape: The shape of what one call returns. Inferred for a JAX function, required for a host function.
            support: Where one call's values lie. A discrete support makes samples integers.
            host: Whether `fn` runs outside JAX. Floating parameters then arrive as NumPy float64, integers as int64.
            log_prob: The log density `log_prob(value, *params)` of one site, a scalar, when there is one.
            validate_args: As for every NumPyro distribution.
        """
        self.fn = fn
        self.host = bool(host)
        self.density = log_prob
        self.params = tuple(as_parameter(fn, position, value) for position, value in enumerate(params))
        self.param_event_dims = check_event_dims(fn, self.params, param_event_dims)
        batch_shape = broadcast_batches(fn, self.params, self.param_event_dims)
        if self.host and event_shape is None:
            raise ValueError(
                f"Simulator {name_of(fn)!r} is a host function, so its output shape cannot be inferred. "
                "Pass event_shape=..., the shape of what one call returns (() for a scalar)."
            )
        declared = None if event_shape is None else tuple(int(size) for size in event_shape)
        found = declared if self.host else infer_event_shape(fn, self.params, self.param_event_dims)
        assert found is not None
        # A wrong declaration is refused on first use, when the name of the site is known.
        self._declared = found if declared is None else declared
        support = _as_support(fn, support, found)
        self._support_static, self._support_arrays = _split_support(support)
        super().__init__(batch_shape, found, validate_args=validate_args)

    def check_event_shape(self, site: str | None = None) -> None:
        """Refuse an event shape that was declared and is not what the function returns."""
        check_output_shape(self.fn, self._declared, self.event_shape, site)

    @property
    def support(self) -> constraints.Constraint:
        """Where the values of one event lie."""
        if self._support_static is not None:
            return self._support_static.constraint
        assert self._support_arrays is not None
        return self._support_arrays

    @property
    def has_static_support(self) -> bool:
        """Whether the support is known without parameters."""
        return self._support_static is not None

    @property
    def param_event_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape that each parameter has in one call."""
        return tuple(self._event_shape_of(position) for position in range(len(self.params)))

    @property
    def has_rsample(self) -> bool:
        """Whether draws are differentiable in the parameters; never claimed for a black box."""
        return False

    @property
    def dtype(self) -> np.dtype:
        """The dtype of a sample: JAX's default integer for a discrete support, else its default float."""
        return np.dtype(jnp.result_type(int if self.is_discrete else float))

    def sample(self, key: Array | None, sample_shape: tuple[int, ...] = ()) -> Array:
        """Simulate every member of the batch, once per entry of `sample_shape`.

        The member at flat position i uses the key `fold_in(key, i)`, so a draw is a function of key and position alone.
        """
        if key is None:
            raise ValueError(
                f"Simulator {name_of(self.fn)!r} needs a random key to be sampled. "
                "Run the model under numpyro.handlers.seed, or call sample(key)."
            )
        self.check_event_shape()
        lead = tuple(sample_shape) + self.batch_shape
        keys = jax.vmap(jax.random.fold_in, (None, 0))(_typed_key(key), jnp.arange(math.prod(lead), dtype=jnp.uint32))
        if self.host:
            return self._call_host(jnp.reshape(keys, lead), self._aligned(len(lead)))
        rows, axes = self._rows(self.batch_shape)
        keys = jnp.reshape(keys, (math.prod(sample_shape), math.prod(self.batch_shape)))
        over_batch = jax.vmap(self._call_jax, (0, *axes))
        values = jax.vmap(over_batch, (0, *(None for _ in rows)))(keys, *rows)
        return jnp.reshape(values, lead + self.event_shape)

    def simulate_one(self, key: Array, params: Sequence[ArrayLike]) -> Array:
        """Make one call of the simulator with the given parameters of one site.

        Args:
            key: The key of this call.
            params: One value per parameter, of the parameter's event shape, as `site_params` gives them.

        Returns:
            One event. It may be mapped with `jax.vmap`; every member is then one call.
        """
        values = tuple(jnp.asarray(value) for value in params)
        expected = self.param_event_shapes
        got = tuple(value.shape for value in values)
        if got != expected:
            raise ValueError(
                f"Simulator {name_of(self.fn)!r} takes parameters of shapes {expected} per site, but got {got}. "
                "Pass what site_params(index) gives."
            )
        if self.host:
            return self._call_host(_typed_key(key), values)
        return self._call_jax(_typed_key(key), *values)

    def site_params(
        self, index: int | ArrayLike | tuple[ArrayLike, ...], batch_shape: Sequence[int] | None = None
    ) -> tuple[Array, ...]:
        """Give the parameters of one member of the batch.

        Args:
            index: The member's position, one integer per dimension of the batch; it may be traced.
            batch_shape: The batch shape to index, where the simulator was expanded; its own by default.
        """
        full = self.batch_shape if batch_shape is None else tuple(batch_shape)
        position = index if isinstance(index, tuple) else (index,)
        if len(position) != len(full):
            raise ValueError(
                f"Simulator {name_of(self.fn)!r} has batch shape {full}, but the index has {len(position)} entries. "
                "Pass one integer per batch dimension."
            )
        return tuple(
            jnp.broadcast_to(value, full + value.shape[value.ndim - dims :])[position]
            for value, dims in zip(self.params, self.param_event_dims, strict=True)
        )

    def take(self, index: ArrayLike, axis: int, batch_shape: Sequence[int] | None = None) -> "Simulator":
        """Give the simulator of some members along one batch axis.

        Args:
            index: Their positions, a vector of integers; it may be traced. The axis keeps its place.
            axis: The batch axis, negative from the right of the batch shape.
            batch_shape: The batch shape to index, where the simulator was expanded; its own by default.
        """
        full = self.batch_shape if batch_shape is None else tuple(batch_shape)
        if not -len(full) <= axis < 0:
            raise ValueError(
                f"Simulator {name_of(self.fn)!r} has batch shape {full}, which has no axis {axis}. "
                f"Pass an axis from {-len(full)} to -1."
            )
        params = tuple(
            jnp.take(jnp.broadcast_to(value, full + value.shape[value.ndim - dims :]), index, axis=axis - dims)
            for value, dims in zip(self.params, self.param_event_dims, strict=True)
        )
        size = jnp.shape(index)[0]
        taken = copy.copy(self)
        taken.params = params
        taken._batch_shape = (*full[: len(full) + axis], size, *full[len(full) + axis + 1 :])
        return taken

    def log_prob(self, value: ArrayLike, intermediates: list[Any] | None = None) -> Array:
        """Evaluate the density that was given, at every member of the batch."""
        self.check_event_shape()
        value = jnp.asarray(value)
        if value.shape[value.ndim - self.event_dim :] != self.event_shape or value.ndim < self.event_dim:
            raise ValueError(
                f"Simulator {name_of(self.fn)!r} got a value of shape {value.shape}, expected it to end in the "
                f"event shape {self.event_shape}. Pass observations with one event per call of the simulator."
            )
        lead = jnp.broadcast_shapes(value.shape[: value.ndim - self.event_dim], self.batch_shape)
        if self.density is None:
            if not _STUB_ACTIVE.get():
                raise NotImplementedError(
                    f"Simulator {name_of(self.fn)!r} has no density, so its log_prob cannot be evaluated. "
                    "Pass log_prob=... to hsbi.Simulator to run NUTS or SVI on this site, or infer with hsbi.LF, "
                    "which needs no density."
                )
            return self._stub(value, lead)
        rows, axes = self._rows(lead)
        values = jnp.broadcast_to(value, lead + self.event_shape)
        values = jnp.reshape(values, (math.prod(lead), *self.event_shape))
        return jnp.reshape(jax.vmap(self._density_one, (0, *axes))(values, *rows), lead)

    def __repr__(self) -> str:
        """Name the function and the shapes."""
        kind = ", host=True" if self.host else ""
        return f"Simulator({name_of(self.fn)}, batch_shape={self.batch_shape}, event_shape={self.event_shape}{kind})"

    def _event_shape_of(self, position: int) -> tuple[int, ...]:
        """Give the event shape of one parameter."""
        value = self.params[position]
        return value.shape[value.ndim - self.param_event_dims[position] :]

    def _aligned(self, num_dims: int) -> tuple[Array, ...]:
        """Reshape each parameter to `num_dims` batch dimensions, by leading ones."""
        return tuple(
            jnp.reshape(value, (1,) * (num_dims + dims - value.ndim) + value.shape)
            for value, dims in zip(self.params, self.param_event_dims, strict=True)
        )

    def _rows(self, lead: tuple[int, ...]) -> tuple[tuple[Array, ...], tuple[int | None, ...]]:
        """Flatten the batch of each parameter; one that all members share stays single, with axis None."""
        rows, axes = [], []
        for position, value in enumerate(self.params):
            event_shape = self._event_shape_of(position)
            if math.prod(value.shape[: value.ndim - len(event_shape)]) == 1:
                rows.append(jnp.reshape(value, event_shape))
                axes.append(None)
            else:
                full = jnp.broadcast_to(value, lead + event_shape)
                rows.append(jnp.reshape(full, (math.prod(lead), *event_shape)))
                axes.append(0)
        return tuple(rows), tuple(axes)

    def _call_jax(self, key: Array, *params: Array) -> Array:
        value = jnp.asarray(self.fn(key, *params))
        check_output_shape(self.fn, self.event_shape, value.shape)
        if self.is_discrete and jnp.issubdtype(value.dtype, jnp.floating):
            return encode_counts(value, self.dtype)
        return value.astype(self.dtype)

    def _call_host(self, keys: Array, params: tuple[Array, ...]) -> Array:
        """Call the host function once per key; `params` have the batch dimensions of `keys`, of full size or one."""
        run = functools.partial(
            run_host, self.fn, self.param_event_dims, self.event_shape, np.dtype(self.dtype), self.is_discrete
        )
        result = jax.ShapeDtypeStruct(keys.shape + self.event_shape, self.dtype)
        return jax.pure_callback(run, result, jax.random.key_data(keys), *params, vmap_method="expand_dims")

    def _density_one(self, value: Array, *params: Array) -> Array:
        assert self.density is not None
        result = jnp.asarray(self.density(value, *params))
        if result.shape != ():
            raise ValueError(
                f"log_prob of simulator {name_of(self.fn)!r} returned shape {result.shape} for one site, expected a "
                "scalar (). Sum the log density over the event."
            )
        return result

    def _stub(self, value: Array, lead: tuple[int, ...]) -> Array:
        total = jnp.zeros(lead)
        for array, dims in zip((value, *self.params), (self.event_dim, *self.param_event_dims), strict=True):
            summed = jnp.sum(array.astype(total.dtype), axis=tuple(range(array.ndim - dims, array.ndim)))
            total = total + jnp.broadcast_to(summed, lead)
        return total


def find_simulator(distribution: Distribution) -> tuple[Simulator, tuple[int, ...]] | None:
    """Find the simulator inside `expand`, `mask` and `to_event`, and the batch shape it is used with.

    Returns:
        The simulator and its expanded batch shape, to be passed on to `site_params` or `take`; None for any other
        distribution. Dimensions that `to_event` made part of the event count as batch here: each is its own call.
    """
    inner = distribution
    while not isinstance(inner, Simulator):
        inner = getattr(inner, "base_dist", None)
        if inner is None:
            return None
    extra = len(distribution.event_shape) - len(inner.event_shape)
    return inner, tuple(distribution.batch_shape) + tuple(distribution.event_shape[:extra])


class _StaticSupport:
    """A support that can be compared and hashed, as JAX asks of static data."""

    def __init__(self, constraint: constraints.Constraint) -> None:
        self.constraint = constraint

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _StaticSupport) and bool(self.constraint == other.constraint)

    def __hash__(self) -> int:
        return hash(repr(self.constraint))


def _split_support(support: constraints.Constraint) -> tuple[_StaticSupport | None, constraints.Constraint | None]:
    """Keep a support with plain number bounds static, so that `vmap` does not ask its bounds for a batch axis."""
    leaves = jax.tree.leaves(support)
    if all(isinstance(leaf, int | float | np.generic) for leaf in leaves):
        return _StaticSupport(support), None
    return None, support


def _as_support(
    fn: Callable[..., Any], support: constraints.Constraint, event_shape: tuple[int, ...]
) -> constraints.Constraint:
    """Raise a support to the event's dimensions."""
    if not isinstance(support, constraints.Constraint):
        raise TypeError(
            f"Simulator {name_of(fn)!r} got support {support!r}, expected one of numpyro.distributions.constraints. "
            "Pass for example constraints.positive or constraints.nonnegative_integer."
        )
    extra = len(event_shape) - support.event_dim
    if extra < 0:
        raise ValueError(
            f"Simulator {name_of(fn)!r} returns events of shape {event_shape}, but its support {support} needs at "
            f"least {support.event_dim} dimensions. Pass a support of the event's dimensions."
        )
    return constraints.independent(support, extra) if extra else support


def _typed_key(key: Array) -> Array:
    """Accept keys of both kinds that JAX has; the simulator always gets a typed one."""
    return key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)
