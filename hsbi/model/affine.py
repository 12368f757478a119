"""Location and scale of a distribution in the unconstrained space of its support."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import digamma, polygamma
from numpyro.distributions import transforms

from hsbi.model import bijections

# Probabilities one standard deviation either side of the median of a normal distribution.
_LOWER, _UPPER = 0.5 * math.erfc(math.sqrt(0.5)), 0.5 * math.erfc(-math.sqrt(0.5))
_EULER = 0.5772156649015329
# Mean and standard deviation of log |Z| for a standard normal Z, and of log |C| for a standard Cauchy C.
_LOG_HALF_NORMAL = (-0.5 * (_EULER + math.log(2.0)), math.pi / math.sqrt(8.0))
_LOG_HALF_CAUCHY = (0.0, math.pi / 2.0)
_LOGISTIC_SD = math.pi / math.sqrt(3.0)
_GUMBEL_SD = math.pi / math.sqrt(6.0)

_Moments = Callable[[Any], tuple[Any, Any]]

# Mean and standard deviation of log x, for distributions on the positive half-line.
_LOG_MOMENTS: dict[type, _Moments] = {
    dist.LogNormal: lambda fn: (fn.loc, fn.scale),
    dist.HalfNormal: lambda fn: (jnp.log(fn.scale) + _LOG_HALF_NORMAL[0], _LOG_HALF_NORMAL[1]),
    dist.HalfCauchy: lambda fn: (jnp.log(fn.scale) + _LOG_HALF_CAUCHY[0], _LOG_HALF_CAUCHY[1]),
    dist.Exponential: lambda fn: (-_EULER - jnp.log(fn.rate), _GUMBEL_SD),
    dist.Gamma: lambda fn: (
        digamma(fn.concentration) - jnp.log(fn.rate),
        jnp.sqrt(polygamma(1, fn.concentration)),
    ),
    dist.InverseGamma: lambda fn: (
        jnp.log(fn.rate) - digamma(fn.concentration),
        jnp.sqrt(polygamma(1, fn.concentration)),
    ),
    dist.Weibull: lambda fn: (jnp.log(fn.scale) - _EULER / fn.concentration, _GUMBEL_SD / fn.concentration),
}
# The same of logit x, for distributions on the unit interval.
_LOGIT_MOMENTS: dict[type, _Moments] = {
    dist.Beta: lambda fn: (
        digamma(fn.concentration1) - digamma(fn.concentration0),
        jnp.sqrt(polygamma(1, fn.concentration1) + polygamma(1, fn.concentration0)),
    ),
}

_LOCATION_SCALE = (dist.Normal, dist.StudentT, dist.Cauchy, dist.Laplace, dist.Logistic, dist.Gumbel)


class Affine(NamedTuple):
    """The map z -> loc + scale z of an unconstrained value, with a lower-triangular `tril` in place of `scale` if set.

    Attributes:
        loc: Batch, then event.
        scale: The same shape, positive.
        tril: Batch, then event twice, or None.
    """

    loc: Array
    scale: Array
    tril: Array | None = None

    def forward(self, z: Array) -> Array:
        """Go from standardized to unconstrained."""
        if self.tril is None:
            return self.loc + self.scale * z
        return self.loc + jnp.squeeze(self.tril @ z[..., None], -1)

    def inverse(self, raw: Array) -> Array:
        """Go from unconstrained to standardized."""
        if self.tril is None:
            return (raw - self.loc) / self.scale
        return jnp.squeeze(solve_triangular(self.tril, (raw - self.loc)[..., None], lower=True), -1)

    def log_scales(self) -> Array:
        """Give the terms of the log-determinant of `forward`, of the shape of `loc`; their sum is all of it."""
        if self.tril is None:
            return jnp.log(self.scale)
        return jnp.log(jnp.diagonal(self.tril, axis1=-2, axis2=-1))


def conditional_affine(fn: dist.Distribution, shape: tuple[int, ...]) -> Affine:
    """Find location and scale of the unconstrained coordinates of x from `fn`.

    In order of preference: a closed form, the median and the central 68 % by `icdf`, mean and variance by the delta
    method, and (0, 1). What is not finite becomes 0 or 1, so the map is always invertible.

    Args:
        fn: The distribution, with the values of its parents in it.
        shape: The shape of its unconstrained value.
    """
    base = _unwrap(fn)
    bijection = _strip(transforms.biject_to(base.support))
    loc, scale, tril = _closed_form(base, bijection) or _quantiles(base, bijection) or _moments(base, bijection)
    loc = jnp.broadcast_to(loc, shape)
    loc = jnp.where(jnp.isfinite(loc), loc, 0.0)
    if tril is None:
        scale = jnp.broadcast_to(scale, shape)
        return Affine(loc, jnp.where(jnp.isfinite(scale) & (scale > 0.0), scale, 1.0))
    tril = jnp.broadcast_to(tril, (*shape, shape[-1]))
    diagonal = jnp.diagonal(tril, axis1=-2, axis2=-1)
    usable = jnp.all(jnp.isfinite(tril), axis=(-2, -1)) & jnp.all(diagonal > 0.0, axis=-1)
    eye = jnp.broadcast_to(jnp.eye(shape[-1], dtype=tril.dtype), tril.shape)
    return Affine(loc, jnp.ones(shape), jnp.where(usable[..., None, None], tril, eye))


_Found = tuple[Any, Any, Any]


def _unwrap(fn: dist.Distribution) -> dist.Distribution:
    """Go inside `expand`, `to_event` and `mask`."""
    while isinstance(fn, dist.ExpandedDistribution | dist.Independent | dist.MaskedDistribution):
        fn = fn.base_dist
    return fn


def _strip(bijection: Any) -> Any:
    """Go inside a bijection that only reinterprets batch dimensions."""
    while isinstance(bijection, transforms.IndependentTransform):
        bijection = bijection.base_transform
    return bijection


def _closed_form(fn: Any, bijection: Any) -> _Found | None:
    """Give location and scale where mathematics does."""
    if isinstance(bijection, transforms.IdentityTransform):
        if isinstance(fn, _LOCATION_SCALE):
            return fn.loc, fn.scale, None
        if isinstance(fn, dist.MultivariateNormal | dist.MultivariateStudentT):
            return fn.loc, None, fn.scale_tril
    table = {transforms.ExpTransform: _LOG_MOMENTS, transforms.SigmoidTransform: _LOGIT_MOMENTS}
    for kind, moments in table.get(type(bijection), {}).items():
        if isinstance(fn, kind):
            return *moments(fn), None
    if isinstance(fn, dist.Uniform):
        # The logit of a uniform variable is standard logistic.
        return 0.0, _LOGISTIC_SD, None
    if isinstance(fn, dist.TransformedDistribution):
        return _transformed(fn, bijection)
    return None


def _transformed(fn: dist.TransformedDistribution, bijection: Any) -> _Found | None:
    """Push a location-scale base through elementwise transforms, exactly where the result is location-scale again."""
    base = _unwrap(fn.base_dist)
    if not isinstance(base, _LOCATION_SCALE):
        return None
    parts = [_strip(part) for part in fn.transforms]
    loc, scale = (jnp.broadcast_to(jnp.asarray(value), fn.base_dist.shape()) for value in _location_scale(base))
    if len(parts) == 1 and isinstance(parts[0], transforms.LowerCholeskyAffine):
        lower = parts[0].scale_tril
        return parts[0](loc), None, lower * scale[..., None, :]
    if any(part.domain.event_dim or part.codomain.event_dim for part in (*parts, bijection)):
        return None
    # log(exp(x)) and logit(sigmoid(x)) overflow where x does not.
    if parts and type(parts[-1]) is type(bijection) and isinstance(bijection, _STANDARD):
        rest: Any = transforms.ComposeTransform(parts[:-1])
        return *_delta(rest, loc, scale), None
    whole: Any = transforms.ComposeTransform(parts)
    return *_delta(lambda x: bijections.unconstrain(fn.support, whole(x)), loc, scale), None


def _location_scale(fn: Any) -> tuple[Any, Any]:
    return fn.loc, fn.scale


_STANDARD = transforms.ExpTransform | transforms.SigmoidTransform


def _delta(function: Callable[[Array], Array], loc: Array, scale: Array) -> tuple[Array, Array]:
    """Give location and scale of an elementwise function of a variable, to first order."""
    loc = jnp.asarray(loc, float)
    moved, slope = jax.jvp(function, (loc,), (jnp.ones_like(loc),))
    return moved, jnp.abs(slope) * scale


def _quantiles(fn: Any, bijection: Any) -> _Found | None:
    """Give the median and half the width of the central 68 %."""
    if fn.event_dim or bijection.domain.event_dim:
        return None
    try:
        low, middle, high = (
            bijections.unconstrain(fn.support, fn.icdf(jnp.full(fn.batch_shape, probability)))
            for probability in (_LOWER, 0.5, _UPPER)
        )
    except (NotImplementedError, AttributeError, TypeError, ValueError):
        return None
    return middle, 0.5 * jnp.abs(high - low), None


def _moments(fn: Any, bijection: Any) -> _Found:
    """Give mean and standard deviation by the delta method, or (0, 1)."""
    try:
        mean, sd = fn.mean, jnp.sqrt(fn.variance)
        if bijection.domain.event_dim:
            return bijections.unconstrain(fn.support, mean), jnp.ones(()), None
        return *_delta(lambda x: bijections.unconstrain(fn.support, x), jnp.asarray(mean), sd), None
    except (NotImplementedError, AttributeError, TypeError, ValueError):
        return jnp.zeros(()), jnp.ones(()), None
