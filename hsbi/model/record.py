"""Run a program without computing it, and record its statements."""

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import numpyro.primitives
from jax import Array
from jax.core import Tracer
from numpyro.distributions import Distribution, constraints

from hsbi.model.simulator import find_simulator

Kind = Literal["latent", "observed", "deterministic", "factor", "param"]

_WRAPPERS = (dist.Independent, dist.ExpandedDistribution, dist.MaskedDistribution)
_PATCHES = threading.RLock()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Frame:
    """One plate around a statement, as that statement saw it."""

    name: str
    dim: int
    size: int


@dataclasses.dataclass(kw_only=True)
class Statement:
    """One statement of the program as it ran.

    Arrays in `fn`, `value`, `mask` and `inputs` are tracers, of use only while the program is being traced.

    Attributes:
        name: The site's name.
        kind: What the statement does.
        frames: The plates around it, from outer to inner.
        fn: The distribution, plates and masks applied; None for a deterministic.
        value: The value that the statement returned.
        data: Whether `value` is data.
        inputs: The functional inputs, or None.
        scaled: Whether its log density is scaled.
        in_scan: Whether it stood in a NumPyro control-flow primitive.
        fixed: Whether a handler gave a latent its value.
    """

    name: str
    kind: Kind
    frames: tuple[Frame, ...] = ()
    fn: Distribution | None = None
    value: Any = None
    data: bool = False
    inputs: Any = None
    scaled: bool = False
    in_scan: bool = False
    fixed: bool = False

    @property
    def event_dim(self) -> int:
        """The number of event dimensions of the distribution, 0 for a deterministic."""
        return 0 if self.fn is None else self.fn.event_dim

    @property
    def distribution(self) -> str:
        """The distribution's class name without expansion, event dimensions and masks; empty for a deterministic."""
        return "" if self.fn is None else type(base_distribution(self.fn)).__name__

    @property
    def program_shape(self) -> tuple[int, ...]:
        """The shape that the program gives to the value, whatever the shape of the data."""
        if self.fn is None or self.kind == "latent":
            return tuple(np.shape(self.value))
        return tuple(self.fn.shape())

    @property
    def mask(self) -> Any:
        """The product of the masks on the distribution, or None."""
        found, inner = None, self.fn
        while isinstance(inner, _WRAPPERS):
            if isinstance(inner, dist.MaskedDistribution):
                found = inner._mask if found is None else found & inner._mask
            inner = inner.base_dist
        return found


@dataclasses.dataclass(kw_only=True)
class Recording:
    """All statements of one run, and the plates in the order they were built."""

    statements: list[Statement] = dataclasses.field(default_factory=list)
    plates: list[tuple[str, int, int]] = dataclasses.field(default_factory=list)

    def __getitem__(self, name: str) -> Statement:
        return next(statement for statement in self.statements if statement.name == name)

    def of_kind(self, *kinds: Kind) -> list[Statement]:
        """Give the statements of some kinds, in program order."""
        return [statement for statement in self.statements if statement.kind in kinds]


def undo_reparam(model: Callable[..., Any]) -> Callable[..., Any]:
    """Give the program as written: no reparameterization, and `obs_mask` as a mask on one site.

    `handlers.reparam`, around the model or inside it, does nothing while the result runs, so that `theta` is a site and
    `theta_decentered` is not. `numpyro.sample(name, ..., obs_mask=mask)` is one masked site called `name` in place of
    `name_observed` and `name_unobserved`.
    """
    return model if isinstance(model, _AsWritten) else _AsWritten(model)


class _AsWritten:
    """A model that runs without reparameterization; `fn` is the model, as in NumPyro's handlers."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        functools.update_wrapper(self, fn, updated=[])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with _as_written():
            return self.fn(*args, **kwargs)


@contextlib.contextmanager
def _as_written() -> Iterator[None]:
    """Switch `reparam` and the splitting of `obs_mask` off, in this thread, while the context lasts.

    Handlers inside the program run before any that we can put around it, so what they do cannot be undone from outside.
    """
    thread = threading.get_ident()
    with _PATCHES:
        reparam, split = numpyro.handlers.reparam.process_message, numpyro.primitives._masked_observe

        def process_message(self: Any, msg: Any) -> None:
            if threading.get_ident() != thread:
                reparam(self, msg)

        def masked_observe(name: str, fn: Distribution, obs: Any, obs_mask: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != thread:
                return split(name, fn, obs, obs_mask, **kwargs)
            with numpyro.handlers.mask(mask=obs_mask):
                return numpyro.sample(name, fn, obs=obs, **kwargs)

        numpyro.handlers.reparam.process_message = process_message
        numpyro.primitives._masked_observe = masked_observe
        try:
            yield
        finally:
            numpyro.handlers.reparam.process_message = reparam
            numpyro.primitives._masked_observe = split


class Recorder(numpyro.primitives.Messenger):
    """Record every statement and keep simulators from running.

    Args:
        observed: Names of sites that are observed although no data were given.
        values: Values to give to latents, or functions from the prior to the value; the others are drawn.
    """

    def __init__(self, observed: Sequence[str] = (), values: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.observed = frozenset(observed)
        self.values = {} if values is None else values
        self.recording = Recording()
        self._fixed: set[str] = set()

    def process_message(self, msg: Any) -> None:
        """Choose the value of a sample statement before NumPyro draws it."""
        if msg["type"] != "sample" or msg["is_observed"] or msg.get("_control_flow_done"):
            return
        name, fn = msg["name"], msg["fn"]
        if msg["value"] is not None:
            self._fixed.add(name)
        if self._is_observed(msg) or (is_improper(fn) and name not in self.values):
            msg["value"] = placeholder(fn)
        elif name in self.values:
            value = self.values[name]
            msg["value"] = value(fn) if callable(value) else value

    def postprocess_message(self, msg: Any) -> None:
        """Record the statement with its final value."""
        if msg["type"] == "plate":
            size, subsample_size = msg["args"]
            self.recording.plates.append((msg["name"], size, size if subsample_size is None else subsample_size))
        if msg["type"] not in ("sample", "deterministic", "param"):
            return
        # Plates append their frame as the message passes outwards, so the innermost comes first.
        stack = reversed(msg.get("cond_indep_stack", []))
        frames = tuple(Frame(name=frame.name, dim=frame.dim, size=frame.size) for frame in stack)
        statement = Statement(name=msg["name"], kind=self._kind(msg), frames=frames, value=msg["value"])
        if msg["type"] == "sample":
            if (found := find_simulator(msg["fn"])) is not None:
                found[0].check_event_shape(msg["name"])
            statement.fn = msg["fn"]
            statement.data = bool(msg["is_observed"])
            statement.inputs = msg["infer"].get("inputs")
            statement.scaled = msg["scale"] is not None
            statement.in_scan = bool(msg.get("_control_flow_done"))
            statement.fixed = msg["name"] in self._fixed
        self.recording.statements.append(statement)

    def _kind(self, msg: Any) -> Kind:
        if msg["type"] != "sample":
            return msg["type"]
        if isinstance(base_distribution(msg["fn"]), dist.Unit):
            return "factor"
        return "observed" if msg["is_observed"] or self._is_observed(msg) else "latent"

    def _is_observed(self, msg: Any) -> bool:
        return msg["name"] in self.observed or find_simulator(msg["fn"]) is not None


def record(
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    recorder: Recorder,
    key: Array | int = 0,
) -> Recording:
    """Run the program once under a recorder; call it while JAX traces, so that nothing is computed."""
    with recorder, numpyro.handlers.seed(rng_seed=key):
        model(*args, **kwargs)
    return recorder.recording


def base_distribution(fn: Distribution) -> Distribution:
    """Strip `expand`, `to_event` and `mask`."""
    while isinstance(fn, _WRAPPERS):
        fn = fn.base_dist
    return fn


def placeholder(fn: Distribution) -> Array:
    """Give a value of the distribution's shape that lies in its support where NumPyro knows one."""
    dtype = jnp.result_type(int if fn.is_discrete else float)
    zeros = jnp.zeros(fn.shape(), dtype)
    support = fn.support
    if support is None:
        return zeros
    try:
        return jnp.broadcast_to(jnp.asarray(support.feasible_like(zeros), dtype), zeros.shape)
    except (NotImplementedError, AttributeError, TypeError, ValueError):
        return zeros


def is_improper(fn: Distribution) -> bool:
    """Say whether nothing can be drawn, because an improper prior is in the distribution or under its transforms."""
    inner: Any = fn
    while inner is not None:
        if isinstance(inner, dist.ImproperUniform):
            return True
        inner = getattr(inner, "base_dist", None)
    return False


def describe_support(support: constraints.Constraint | None) -> str:
    """Name a support in NumPyro's words, with its bounds where they are known numbers."""
    if support is None:
        return "unknown"
    if isinstance(support, constraints.independent):
        return describe_support(support.base_constraint)
    public = {name: known for name, known in vars(constraints).items() if not name.startswith("_")}
    for name, known in public.items():
        if known is support:
            return name
    fallback = type(support).__name__.strip("_").lower()
    kind = next((name for name, known in public.items() if known is type(support)), fallback)
    bounds = [
        _number(getattr(support, side, None)) for side in ("lower_bound", "upper_bound") if hasattr(support, side)
    ]
    return f"{kind}({', '.join(bounds)})" if bounds and all(bounds) else kind


def _number(value: Any) -> str:
    """Print a bound, or nothing where it is traced or differs between entries."""
    if is_traced(value) or np.size(value) == 0:
        return ""
    entries = np.ravel(np.asarray(value))
    return f"{float(entries[0]):g}" if np.all(entries == entries[0]) else ""


def is_traced(value: Any) -> bool:
    """Say whether a value is known only to JAX's tracing, and has no numbers."""
    return isinstance(value, Tracer)
