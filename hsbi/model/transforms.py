"""What is done to values before networks see them: coordinates, standardization, observation transforms."""

import dataclasses
import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from hsbi.model.bijections import (
    as_inexact,
    bounded_exp,
    constrain,
    describe_support,
    front,
    interval_forward,
    log_jacobian,
    strip_independent,
    unconstrain,
    unconstrained_shape,
)

__all__ = [
    "ObservationTransform",
    "Standardizer",
    "compress_tails",
    "constrain",
    "fit_standardizer",
    "log_jacobian",
    "observation_transform",
    "unconstrain",
    "unconstrained_shape",
]

Kind = Literal["real", "positive", "negative", "interval", "count", "binary"]

# Central quantile pairs of a normal at 1, 2, 3 and about 5 standard deviations. The first pair with any spread sets the
# scale: tails then have no say, and a spike that swallows the inner pairs does not leave the scale at zero.
_QUANTILES = ((0.15865525, 1.0), (0.02275013, 2.0), (0.00134990, 3.0), (0.0, 5.0))
# Features are linear within about this many scales of the centre and logarithmic beyond.
_FEATURE_KNEE = 3.0
_FEATURE_LIMIT = 1e30
# Share of a count's unit cell that noise leaves free at its edges: rounding in float32 must not carry a value into the
# next cell. The logarithm's rounding grows with the count, and so does the margin.
_CELL_MARGIN = 2e-3
_CELL_MARGIN_PER_COUNT = 1e-5
_CELL_MARGIN_MAX = 0.9
# Where the outermost cells of integers end, in standardized numbers.
_FAR_CELL = 1e6


class Standardizer(NamedTuple):
    """Centre and scale of coordinates, with the coordinates' shape."""

    loc: Array
    scale: Array

    def standardize(self, value: Array) -> Array:
        """Subtract the centre and divide by the scale; axes in front are batch."""
        return (value - front(self.loc, value)) / front(self.scale, value)

    def unstandardize(self, value: Array) -> Array:
        """Undo `standardize`."""
        return value * front(self.scale, value) + front(self.loc, value)


@jax.jit
def fit_standardizer(draws: ArrayLike) -> Standardizer:
    """Take centre and scale from draws along the first axis.

    The centre is the median and the scale half the distance of the 16 % and 84 % quantiles, the standard deviation of a
    normal, so heavy tails do not blow it up. Entries that are not finite are ignored; constant coordinates get scale 1.
    """
    draws = as_inexact(draws)
    finite = jnp.where(jnp.isfinite(draws), draws, jnp.nan)
    levels = jnp.asarray([0.5, *(q for q, _ in _QUANTILES), *(1.0 - q for q, _ in _QUANTILES)], draws.dtype)
    quantiles = jnp.nanquantile(finite, levels, axis=0)
    loc = jnp.nan_to_num(quantiles[0])
    resolution = 4 * jnp.finfo(draws.dtype).eps * jnp.abs(loc)
    scale = jnp.ones_like(loc)
    for place in range(len(_QUANTILES) - 1, -1, -1):
        half = 2 * _QUANTILES[place][1]
        spread = quantiles[1 + len(_QUANTILES) + place] / half - quantiles[1 + place] / half
        scale = jnp.where(spread > resolution, spread, scale)
    return Standardizer(loc, scale)


def compress_tails(scaled: Array) -> Array:
    """Keep standardized values within about three scales of the centre as they are, and take logarithms beyond."""
    scaled = jnp.clip(scaled, -_FEATURE_LIMIT, _FEATURE_LIMIT)
    return _FEATURE_KNEE * jnp.arcsinh(scaled / _FEATURE_KNEE)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class ObservationTransform:
    """Turn observations of one site into standardized numbers and back.

    Attributes:
        kind: Which map comes before scaling: none, a log from one bound, a logit, or one for integers.
        loc: The centre of the mapped simulations, of the event's shape.
        scale: Their robust spread, of the event's shape.
        lower: The support's lower bound; of the event's shape or a scalar.
        upper: Its upper bound.
        floor: The distance at which a value exactly on a bound is read: half the smallest one simulated.
        bounded: Whether counts end at the upper bound at every site alike.
    """

    kind: Kind = dataclasses.field(metadata={"static": True})
    bounded: bool = dataclasses.field(default=False, metadata={"static": True})
    loc: Array
    scale: Array
    lower: Array
    upper: Array
    floor: Array

    def encode(self, key: Array, value: ArrayLike) -> Array:
        """Map and scale values, spreading integers over their unit cell with noise.

        A value outside the support becomes NaN; missing values stay NaN.
        """
        value = as_inexact(value)
        noise = jax.random.uniform(key, value.shape, value.dtype)
        return Standardizer(self.loc, self.scale).standardize(self._forward(value, noise))

    def decode(self, encoded: ArrayLike) -> Array:
        """Undo `encode`, for counts to the integers of the support.

        Counts up to about 1e5 come back exactly; beyond, float32 leaves a relative error of about 1e-6.
        """
        mapped = Standardizer(self.loc, self.scale).unstandardize(as_inexact(encoded))
        return self._inverse(mapped)

    def center(self, value: ArrayLike) -> Array:
        """Map and scale values without noise, integers to the middle of their unit cell; missing values stay NaN."""
        value = as_inexact(value)
        return Standardizer(self.loc, self.scale).standardize(self._forward(value, jnp.full_like(value, 0.5)))

    def center_of(self, mean: Array, sd: Array) -> tuple[Array, Array]:
        """Give location and log scale of standardized counts whose mean above the lower bound and sd are given."""
        location = Standardizer(self.loc, self.scale).standardize(jnp.log1p(mean + 0.5))
        return location, jnp.log(sd) - jnp.log(mean + 1.5) - jnp.log(front(self.scale, mean))

    @property
    def is_discrete(self) -> bool:
        """Whether values are integers."""
        return self.kind in ("count", "binary")

    def cell(self, value: ArrayLike) -> tuple[Array, Array]:
        """Give the standardized numbers between which `decode` gives an integer; the outermost cells have no end."""
        value = as_inexact(value)
        lower, upper = front(self.lower, value), front(self.upper, value)
        count = value - lower
        below, above = (jnp.log1p(c) if self.kind == "count" else c / 2 for c in (jnp.maximum(count, 0.0), count + 1.0))
        scaling = Standardizer(self.loc, self.scale)
        first, last = value <= lower, value >= upper
        return (
            jnp.where(first, -_FAR_CELL, scaling.standardize(below)),
            jnp.where(last, _FAR_CELL, scaling.standardize(above)),
        )

    def features(self, value: ArrayLike) -> Array:
        """Map and scale values without noise, with tails compressed so that any finite value gives a moderate feature.

        Linear within about three scales of the centre, logarithmic beyond. Missing values stay NaN.
        """
        return compress_tails(self.center(value))

    def log_derivative(self, encoded: ArrayLike) -> Array:
        """Give log |dy/dz| of `decode` entry by entry, for integers of the spread value before rounding."""
        encoded = as_inexact(encoded)
        mapped = Standardizer(self.loc, self.scale).unstandardize(encoded)
        log_scale = jnp.broadcast_to(jnp.log(front(self.scale, encoded)), encoded.shape)
        if self.kind in ("positive", "count"):
            return log_scale + mapped
        if self.kind == "negative":
            return log_scale - mapped
        if self.kind == "interval":
            width = front(self.upper - self.lower, encoded)
            return log_scale + jnp.log(width) + jax.nn.log_sigmoid(mapped) + jax.nn.log_sigmoid(-mapped)
        return log_scale + (math.log(2.0) if self.kind == "binary" else 0.0)

    def _forward(self, value: Array, noise: Array) -> Array:
        lower, upper, floor = (front(bound, value) for bound in (self.lower, self.upper, self.floor))
        if self.kind == "real":
            return value
        if self.kind in ("positive", "negative"):
            sign = 1.0 if self.kind == "positive" else -1.0
            distance = value - lower if self.kind == "positive" else upper - value
            log = jnp.log(jnp.where(distance == 0, floor, distance))
            return sign * jnp.where(distance < 0, jnp.nan, log)
        if self.kind == "interval":
            slack = 1e-5 * (upper - lower)
            inside = (value >= lower - slack) & (value <= upper + slack)
            below = jnp.where(value <= lower, floor, value - lower)
            above = jnp.where(value >= upper, floor, upper - value)
            return jnp.where(inside, jnp.log(below) - jnp.log(above), jnp.nan)
        count = value - lower
        margin = jnp.minimum(_CELL_MARGIN + _CELL_MARGIN_PER_COUNT * count, _CELL_MARGIN_MAX)
        spread = count + 0.5 + (noise - 0.5) * (1.0 - margin)
        mapped = jnp.log1p(spread) if self.kind == "count" else spread / 2
        whole = (value == jnp.floor(value)) & (value >= lower) & (value <= upper)
        return jnp.where(whole, mapped, jnp.nan)

    def _inverse(self, mapped: Array) -> Array:
        lower, upper = front(self.lower, mapped), front(self.upper, mapped)
        if self.kind == "real":
            return mapped
        if self.kind == "positive":
            return lower + bounded_exp(mapped)
        if self.kind == "negative":
            return upper - bounded_exp(-mapped)
        if self.kind == "interval":
            return interval_forward(mapped, lower, upper)
        count = jnp.floor(jnp.expm1(mapped) if self.kind == "count" else 2 * mapped)
        dtype = jnp.result_type(int)
        # The largest float below the integer range: rounding up to 2 ** 31 would wrap to a negative count.
        largest = np.nextafter(np.asarray(2.0 ** (jnp.iinfo(dtype).bits - 1), mapped.dtype), 0)
        return jnp.clip(jnp.clip(lower + count, lower, upper), -largest, largest).astype(dtype)


def observation_transform(support: constraints.Constraint, draws: ArrayLike) -> ObservationTransform:
    """Choose the transform of an observation by its support and scale it by simulations.

    Args:
        support: The support of the observation.
        draws: Simulations along the first axis, then the event. What is not finite or not in the support is ignored.
            Simulations of several sites or replicates belong on the first axis too.
    """
    draws = as_inexact(draws)
    kind, lower, upper = _observation_kind(support)
    event_shape = draws.shape[1:]
    low = _observation_bound(lower, event_shape, jnp.min, draws.dtype)
    high = _observation_bound(upper, event_shape, jnp.max, draws.dtype)
    floor = _smallest_distance(kind, draws, low, high)
    unit = jnp.ones(event_shape, draws.dtype)
    bounded = kind == "count" and bool(np.isfinite(np.max(upper)) and np.ptp(upper) == 0)
    raw = ObservationTransform(kind=kind, bounded=bounded, loc=0 * unit, scale=unit, lower=low, upper=high, floor=floor)
    fitted = fit_standardizer(raw._forward(draws, jnp.full_like(draws, 0.5)))
    return dataclasses.replace(raw, loc=fitted.loc, scale=fitted.scale)


def _observation_kind(support: constraints.Constraint) -> tuple[Kind, ArrayLike, ArrayLike]:
    base, _ = strip_independent(support)
    if isinstance(base, type(constraints.real) | type(constraints.circular)):
        return "real", -math.inf, math.inf
    if isinstance(base, type(constraints.boolean)):
        return "binary", 0.0, 1.0
    if isinstance(base, constraints.integer_interval):
        bounds = (base.lower_bound, base.upper_bound)
        binary = all(isinstance(bound, int | float) for bound in bounds) and bounds == (0, 1)
        return ("binary" if binary else "count"), base.lower_bound, base.upper_bound
    if isinstance(base, constraints.integer_greater_than):
        return "count", base.lower_bound, math.inf
    if isinstance(base, constraints.greater_than | constraints.greater_than_eq):
        return "positive", base.lower_bound, math.inf
    if isinstance(base, constraints.less_than):
        return "negative", -math.inf, base.upper_bound
    if isinstance(base, constraints.interval):
        return "interval", base.lower_bound, base.upper_bound
    raise NotImplementedError(
        f"There is no observation transform for {describe_support(support)}. Observe real, positive, interval, "
        "integer or boolean values: for a vector on a simplex or a manifold, observe its free coordinates instead."
    )


def _observation_bound(
    bound: ArrayLike, event_shape: tuple[int, ...], widest: Callable[[Array], Array], dtype: np.dtype
) -> Array:
    """Keep a bound per entry of the event; one per site becomes the widest, since all sites share the transform."""
    array = jnp.asarray(bound, dtype)
    if array.ndim and array.shape != event_shape:
        array = widest(array)
    return array


def _smallest_distance(kind: Kind, draws: Array, lower: Array, upper: Array) -> Array:
    info = jnp.finfo(draws.dtype)
    if kind not in ("positive", "negative", "interval"):
        return jnp.asarray(info.tiny, draws.dtype)
    low, high = front(lower, draws), front(upper, draws)
    distance = {"positive": draws - low, "negative": high - draws}.get(kind, jnp.minimum(draws - low, high - draws))
    usable = jnp.isfinite(distance) & (distance > 0)
    smallest = jnp.min(jnp.where(usable, distance, jnp.inf))
    return jnp.where(jnp.isfinite(smallest), jnp.maximum(smallest / 2, info.tiny), info.tiny)
