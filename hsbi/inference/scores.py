r"""Normal scores of counts: the distribution of a count as a standard normal that is cut into cells.

A count with mean m and dispersion d is taken to be negative binomial, with variance m + d m^2, or, where counts end at
a common bound N, binomial. Its distribution function is written as :math:`P(Y \le y) = \Phi(z(y))` with the score of
Peizer and Pratt (1968), for binomial probabilities p and q = 1 - p

.. math::

    z = \frac{x + \frac23 - (n + \frac13) p + \epsilon}{\sqrt{(n + \frac16) p q}}
        \sqrt{1 + q\, g\Big(\frac{x + \frac12}{n p}\Big) + p\, g\Big(\frac{n - x - \frac12}{n q}\Big)}, \quad
    g(r) = \frac{1 - r^2 + 2 r \log r}{(1 - r)^2} ,

where epsilon is a small correction. A negative binomial of size k = 1 / d is the binomial with n = x + k and
p = m / (k + m). Probabilities of cells are within 0.01 in total variation for d up to 1, any mean. The formula needs no
iterations, has gradients, and can be inverted, so that what is not of this family is left to a flow on the scores.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array

# Where the series of g is closer than its formula in float32.
_NEAR_ONE = 0.05
# Scores beyond this are those of the ends.
_FAR = 1e6
_NEWTON_STEPS = 5
# Means and dispersions that are believed.
_MAX_LOG_MEAN = 16.0
_MIN_LOG_DISPERSION, _MAX_LOG_DISPERSION = -12.0, 1.0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class CountNoise:
    """The distribution of counts given two numbers each: the link of the mean, and the log dispersion.

    Attributes:
        bounded: Whether counts end at a common bound; then the link is a logit, else a logarithm.
        upper: That bound.
    """

    bounded: bool = dataclasses.field(metadata={"static": True})
    upper: Array

    def mean(self, link: Array) -> Array:
        """Give the mean of counts."""
        if self.bounded:
            return self._bound(link) * jax.nn.sigmoid(link)
        return jnp.exp(jnp.minimum(link, _MAX_LOG_MEAN))

    def variance(self, link: Array, log_dispersion: Array) -> Array:
        """Give the variance of counts."""
        mean = self.mean(link)
        if self.bounded:
            return mean * jax.nn.sigmoid(-link) * _inflation(log_dispersion)
        return mean + _dispersion(log_dispersion) * mean**2

    def scores(self, count: Array, link: Array, log_dispersion: Array) -> tuple[Array, Array]:
        """Give the ends of a count's cell, so that its probability is the mass of a standard normal between them."""
        low = jnp.where(count <= 0, -_FAR, self._score(jnp.maximum(count - 1, 0.0), link, log_dispersion))
        high = self._score(count, link, log_dispersion)
        if self.bounded:
            high = jnp.where(count >= self._bound(count), _FAR, high)
        return low, high

    def counts(self, score: Array, link: Array, log_dispersion: Array) -> Array:
        """Give the count in whose cell a score lies: the least y with z(y) >= score."""
        mean, sd = self.mean(link), jnp.sqrt(self.variance(link, log_dispersion))
        # Scores are nearly straight in the square root of a count.
        root = jnp.sqrt(jnp.maximum(mean + sd * score + (score**2 - 1.0) / 6.0, 0.0) + 0.5)
        largest = jnp.sqrt(self._bound(root) + 0.5) if self.bounded else jnp.full_like(root, 1e9)
        root = jnp.minimum(root, largest)

        def at(root: Array) -> Array:
            return self._score(jnp.maximum(root**2 - 0.5, 0.0), link, log_dispersion)

        for _ in range(_NEWTON_STEPS):
            value, slope = jax.jvp(at, (root,), (jnp.ones_like(root),))
            step = (score - value) / jnp.maximum(slope, 1e-3)
            root = jnp.clip(root + jnp.clip(step, -0.5 * root, root), jnp.sqrt(0.5), largest)
        count = jnp.ceil(root**2 - 0.5)
        # Newton ends within one cell.
        count = jnp.where(self._score(jnp.maximum(count - 1, 0.0), link, log_dispersion) >= score, count - 1, count)
        count = jnp.where(self._score(jnp.maximum(count, 0.0), link, log_dispersion) < score, count + 1, count)
        count = jnp.maximum(count, 0.0)
        return jnp.minimum(count, self._bound(count)) if self.bounded else count

    def _score(self, x: Array, link: Array, log_dispersion: Array) -> Array:
        if self.bounded:
            bound, p, q = self._bound(x), jax.nn.sigmoid(link), jax.nn.sigmoid(-link)
            p, q = jnp.maximum(p, 1e-12), jnp.maximum(q, 1e-12)
            rest = jnp.maximum(bound - x, 0.5)
            center = x - bound * p
            ratios = (x + 0.5) / (bound * p), jnp.maximum(rest - 0.5, 1e-6) / (bound * q)
            score = _peizer_pratt(x, bound, rest, p, q, center, ratios)
            return score / jnp.sqrt(_inflation(log_dispersion))
        mean = jnp.maximum(self.mean(link), 1e-9)
        size = 1.0 / _dispersion(log_dispersion)
        total, number = size + mean, size + x
        p, q = mean / total, size / total
        # x - n p = q (x - m), without the cancellation of large sizes.
        ratios = (x + 0.5) / mean * (total / number), jnp.maximum(size - 0.5, 0.05) / size * (total / number)
        return _peizer_pratt(x, number, size, p, q, q * (x - mean), ratios)

    def _bound(self, like: Array) -> Array:
        return jnp.broadcast_to(self.upper, like.shape)


def _peizer_pratt(
    x: Array, number: Array, rest: Array, p: Array, q: Array, center: Array, ratios: tuple[Array, Array]
) -> Array:
    """Give the score of x of a binomial with that number of trials; `rest` is number - x, `center` x - number p."""
    small = 0.02 * (q / (x + 1.0) - p / rest + (q - 0.5) / (number + 1.0))
    bend = 1.0 + q * _bend(ratios[0]) + p * _bend(ratios[1])
    distance = center + 2.0 / 3.0 - p / 3.0 + small
    return distance * jnp.sqrt(jnp.maximum(bend, 1e-12) / ((number + 1.0 / 6.0) * p * q))


def _bend(ratio: Array) -> Array:
    """Give g(r) = (1 - r^2 + 2 r log r) / (1 - r)^2, by its series near 1, and above 1 by g(r) = -g(1 / r)."""
    ratio = jnp.maximum(ratio, 1e-12)
    sign, part = jnp.where(ratio > 1.0, -1.0, 1.0), jnp.where(ratio > 1.0, 1.0 / ratio, ratio)
    step = part - 1.0
    near = step > -_NEAR_ONE
    series = step * (-1 / 3 + step * (1 / 6 + step * (-1 / 10 + step * (1 / 15 - step / 21))))
    safe = jnp.where(near, 0.5, part)
    return sign * jnp.where(near, series, (1.0 - safe**2 + 2.0 * safe * jnp.log(safe)) / (1.0 - safe) ** 2)


def _dispersion(log_dispersion: Array) -> Array:
    return jnp.exp(jnp.clip(log_dispersion, _MIN_LOG_DISPERSION, _MAX_LOG_DISPERSION))


def _inflation(log_dispersion: Array) -> Array:
    """Give the factor of a bounded count's variance: one for a binomial."""
    return 1.0 + _dispersion(log_dispersion)
