r"""A seasonal epidemic: counts at irregular times, with a common contact rate and a seasonal amplitude per site.

.. math::

    \beta_0 \sim U(0.2, 1.2), \quad A_s \sim U(0.2, 0.5), \quad
    y_{sk} \sim \mathrm{Poisson}(\max(a E_s(t_{sk}), 0.1)),

.. math::

    S' = -\lambda S + w R, \quad E' = \lambda S - a E, \quad I' = a E - g I, \quad R' = g I - w R, \quad
    \lambda = \beta_0 (1 + A_s \sin(2 \pi t / 365 - \pi / 2)) I / N

with latency a = 1/5, recovery g = 1/7 and waning w = 1/180 per day, N = 10^4 and ten infected 730 days before the
window of 365 days in which sites are observed. Given the contact rate a site is an integral over one amplitude, and all
sites share the trajectories of one grid, so the posterior is a quadrature whose cost is linear in sites. Where contact
is frequent the epidemic saturates, and amplitudes return to their prior.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.typing import ArrayLike

import hsbi
from hsbi.bench.tasks.quadrature import Axes, sample_cells, zoom
from hsbi.bench.tasks.task import generator

WINDOW = 365
BETA0_RANGE, AMPLITUDE_RANGE = (0.2, 1.2), (0.2, 0.5)
_BURN_IN = 730
_LATENCY, _RECOVERY, _WANING = 1 / 5, 1 / 7, 1 / 180
_POPULATION, _FIRST_INFECTED = 1e4, 10.0
_LEAST_RATE = 0.1
# Cells of the amplitude: while zooming, and at last. A site knows its amplitude to about 2 % of the range at best.
_COARSE_AMPLITUDES, _NUM_AMPLITUDES = 200, 600
# Cells of the contact rate. Many sites know it to a thousandth of its range, and a coarse grid could miss the peak.
_COARSE_RATES, _NUM_RATES = 48, 64
# Contact rates integrated at once.
_CHUNK = 8

State = tuple[Array, Array, Array, Array]


def daily_incidence(beta0: ArrayLike, amplitude: ArrayLike) -> Array:
    """Give new infectious cases a day at days 0 to 365 of the window, `[..., 366]`, by Runge-Kutta steps of one day."""
    beta0, amplitude = jnp.broadcast_arrays(jnp.asarray(beta0, float), jnp.asarray(amplitude, float))

    def slope(state: State, day: Array) -> State:
        susceptible, exposed, infected, removed = state
        season = 1 + amplitude * jnp.sin(2 * jnp.pi * day / 365 - jnp.pi / 2)
        infection = beta0 * season * infected / _POPULATION * susceptible
        onset, recovery, waning = _LATENCY * exposed, _RECOVERY * infected, _WANING * removed
        return waning - infection, infection - onset, onset - recovery, recovery - waning

    def move(state: State, by: State, step: float) -> State:
        return tuple(value + step * change for value, change in zip(state, by, strict=True))  # type: ignore[return-value]

    def advance(state: State, day: Array) -> tuple[State, Array]:
        k1 = slope(state, day)
        k2 = slope(move(state, k1, 0.5), day + 0.5)
        k3 = slope(move(state, k2, 0.5), day + 0.5)
        k4 = slope(move(state, k3, 1.0), day + 1.0)
        total = tuple((a + 2 * b + 2 * c + d) / 6 for a, b, c, d in zip(k1, k2, k3, k4, strict=True))
        return move(state, total, 1.0), _LATENCY * state[1]  # type: ignore[arg-type]

    zero = jnp.zeros(beta0.shape)
    state = (zero + _POPULATION - _FIRST_INFECTED, zero, zero + _FIRST_INFECTED, zero)
    days = jnp.arange(-_BURN_IN, WINDOW + 1, dtype=jnp.result_type(float))
    state, _ = jax.lax.scan(lambda state, day: (advance(state, day)[0], None), state, days[:_BURN_IN])
    return jnp.moveaxis(jax.lax.scan(advance, state, days[_BURN_IN:])[1], 0, -1)


def at_times(daily: Array, times: Array) -> Array:
    """Interpolate daily values `[..., 366]` linearly at times of the window; all leading axes are kept in front."""
    day = jnp.clip(jnp.floor(times).astype(int), 0, WINDOW - 1)
    part = times - day
    return (1 - part) * daily[..., day] + part * daily[..., day + 1]


def rates(beta0: ArrayLike, amplitude: ArrayLike, times: Array) -> Array:
    """Give one site's expected counts at its times, `[times]`."""
    return jnp.maximum(at_times(daily_incidence(beta0, amplitude), times), _LEAST_RATE)


def epidemic(key: Array, beta0: Array, amplitude: Array, times: Array) -> Array:
    """Simulate one site's counts."""
    return jax.random.poisson(key, rates(beta0, amplitude, times))


def log_density(value: Array, beta0: Array, amplitude: Array, times: Array) -> Array:
    """Evaluate the log density of one site's counts; NaN is missing."""
    missing = jnp.isnan(value)
    terms = dist.Poisson(rates(beta0, amplitude, times)).log_prob(jnp.where(missing, 0.0, value))
    return jnp.sum(jnp.where(missing, 0.0, terms))


def model(times: Array, y: Array | None = None) -> None:
    """Write the task as a NumPyro program without density, `times` and `y` of shape `[sites, times]`."""
    _write(times, y, None)


def model_with_density(times: Array, y: Array | None = None) -> None:
    """Write the same program with the density that NUTS needs."""
    _write(times, y, log_density)


def _write(times: Array, y: Array | None, density: object) -> None:
    beta0 = numpyro.sample("beta0", dist.Uniform(*BETA0_RANGE))
    with numpyro.plate("site", times.shape[0]):
        amplitude = numpyro.sample("amplitude", dist.Uniform(*AMPLITUDE_RANGE))
        counts = hsbi.Simulator(
            epidemic,
            beta0,
            amplitude,
            times,
            param_event_dims=(0, 0, 1),
            support=dist.constraints.nonnegative_integer,
            log_prob=density,  # type: ignore[arg-type]
        )
        numpyro.sample("y", counts, obs=y, infer={"inputs": times})


def draw_times(key: Array, num_sites: int, num_times: int = 12) -> np.ndarray:
    """Draw schedules: sorted uniform times of the window, `[sites, times]`."""
    return np.sort(np.asarray(jax.random.uniform(key, (num_sites, num_times), maxval=WINDOW)), axis=1)


def draw(key: Array, times: ArrayLike, beta0: float | None = None) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Draw latents from the prior, unless the contact rate is given, and a data set."""
    beta0_key, amplitude_key, data_key = jax.random.split(key, 3)
    times = jnp.asarray(times)
    value = jax.random.uniform(beta0_key, (), minval=BETA0_RANGE[0], maxval=BETA0_RANGE[1])
    value = value if beta0 is None else jnp.asarray(beta0, value.dtype)
    low, high = AMPLITUDE_RANGE
    amplitude = jax.random.uniform(amplitude_key, (times.shape[0],), minval=low, maxval=high)
    keys = jax.random.split(data_key, times.shape[0])
    y = jax.jit(jax.vmap(epidemic, (0, None, 0, 0)))(keys, value, amplitude, times)
    return {"beta0": np.asarray(value), "amplitude": np.asarray(amplitude)}, np.asarray(y)


class Grid(NamedTuple):
    """The exact posterior on a grid.

    Attributes:
        beta0: Contact rates, the centers of equal cells.
        weights: Their probabilities.
        amplitude: Amplitudes, the centers of equal cells.
        site_weights: The probabilities of a site's amplitude given each contact rate, `[rates, sites, amplitudes]`.
        log_density: The log density of the contact rates up to a constant.
    """

    beta0: np.ndarray
    weights: np.ndarray
    amplitude: np.ndarray
    site_weights: np.ndarray
    log_density: np.ndarray

    def moments(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Give mean and standard deviation of every latent."""
        given = np.einsum("bsa,ka->kbs", self.site_weights, np.stack([self.amplitude, self.amplitude**2]))
        mean, square = np.einsum("b,kbs->ks", self.weights, given)
        center = self.weights @ self.beta0
        spread = np.sqrt(self.weights @ (self.beta0 - center) ** 2)
        return {"beta0": (np.asarray(center), np.asarray(spread)), "amplitude": (mean, np.sqrt(square - mean**2))}


def solve(
    times: ArrayLike,
    y: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    num_rates: int = _NUM_RATES,
    num_amplitudes: int = _NUM_AMPLITUDES,
) -> Grid:
    """Find the exact posterior.

    Args:
        times: `[sites, times]`.
        y: Counts of the same shape; NaN is missing.
        mask: True where a count was observed; all by default.
        num_rates: Cells of the contact rate, over the range that holds all but about 1e-7 of its mass.
        num_amplitudes: Cells of the amplitude, over the prior's range.
    """
    times, y, seen = _as_data(times, y, mask)

    def evaluate(axes: Axes) -> np.ndarray:
        return _marginals(times, y, seen, axes[0], _COARSE_AMPLITUDES).sum(1)

    (halves,), _ = zoom(evaluate, BETA0_RANGE[:1], BETA0_RANGE[1:], coarse=_COARSE_RATES, final=2)
    width = 2 * (halves[1] - halves[0]) / num_rates
    axis = halves.mean() + width * (np.arange(num_rates) - (num_rates - 1) / 2)
    sites = np.asarray(_log_sites(times, y, seen, jnp.asarray(axis), num_amplitudes), float)
    largest = sites.max(-1, keepdims=True)
    sites = np.exp(sites - largest)
    values = np.sum(np.log(sites.sum(-1)) + largest[..., 0], axis=1)
    weights = np.exp(values - values.max())
    return Grid(
        axis, weights / weights.sum(), _amplitudes(num_amplitudes), sites / sites.sum(-1, keepdims=True), values
    )


def reference(
    key: Array, times: ArrayLike, y: ArrayLike, num_draws: int, mask: ArrayLike | None = None
) -> dict[str, np.ndarray]:
    """Draw from the exact posterior; see `solve` for the arguments."""
    grid = solve(times, y, mask)
    rng = generator(key)
    beta0 = sample_cells(rng, [grid.beta0], grid.log_density, num_draws)[:, 0]
    nearest = np.argmin(np.abs(beta0[:, None] - grid.beta0), axis=1)
    cumulative = np.cumsum(grid.site_weights, axis=-1)
    amplitude = np.empty((num_draws, cumulative.shape[1]))
    for cell in np.unique(nearest):
        rows = np.flatnonzero(nearest == cell)
        for site, total in enumerate(cumulative[cell]):
            chosen = np.searchsorted(total, rng.random(len(rows)) * total[-1], side="right")
            amplitude[rows, site] = grid.amplitude[np.minimum(chosen, len(total) - 1)]
    width = grid.amplitude[1] - grid.amplitude[0]
    return {"beta0": beta0, "amplitude": amplitude + width * (rng.random(amplitude.shape) - 0.5)}


def _as_data(times: ArrayLike, y: ArrayLike, mask: ArrayLike | None) -> tuple[Array, Array, Array]:
    """Check shapes, and put something harmless where nothing was observed."""
    schedule, counts = np.asarray(times, float), np.asarray(y, float)
    seen = np.isfinite(counts) if mask is None else np.isfinite(counts) & np.asarray(mask, bool)
    if schedule.ndim != 2 or counts.shape != schedule.shape or seen.shape != schedule.shape:
        raise ValueError(
            f"Times, counts and mask of task 'seirs' have shapes {schedule.shape}, {counts.shape} and {seen.shape}, "
            "expected (sites, times) for all three."
        )
    known = np.where(np.isfinite(schedule), schedule, 0.0)
    return jnp.asarray(known), jnp.asarray(np.where(seen, counts, 0.0)), jnp.asarray(seen)


def _amplitudes(count: int) -> np.ndarray:
    low, high = AMPLITUDE_RANGE
    return low + (high - low) * (np.arange(count) + 0.5) / count


def _marginals(times: Array, y: Array, seen: Array, beta0: np.ndarray, count: int) -> np.ndarray:
    """Give every site's log likelihood of the contact rate, its amplitude integrated out, `[rates, sites]`."""
    return np.asarray(_integrate_sites(times, y, seen, jnp.asarray(beta0), count), float)


@functools.partial(jax.jit, static_argnames="count")
def _integrate_sites(times: Array, y: Array, seen: Array, beta0: Array, count: int) -> Array:
    def one(value: Array) -> Array:
        return jax.scipy.special.logsumexp(_log_rows(times, y, seen, value, count), axis=-1) - jnp.log(count)

    return jax.lax.map(one, beta0, batch_size=_CHUNK)


@functools.partial(jax.jit, static_argnames="count")
def _log_sites(times: Array, y: Array, seen: Array, beta0: Array, count: int) -> Array:
    """Give the log likelihood of every site, contact rate and amplitude, `[rates, sites, amplitudes]`."""
    return jax.lax.map(lambda value: _log_rows(times, y, seen, value, count), beta0, batch_size=_CHUNK)


def _log_rows(times: Array, y: Array, seen: Array, beta0: Array, count: int) -> Array:
    """Give the log likelihood of sites at one contact rate, relative to rates equal to the counts.

    Relative to these, terms near the mode are of order one, which float32 can add up.
    """
    daily = daily_incidence(beta0, jnp.asarray(_amplitudes(count), jnp.result_type(float)))
    rate = jnp.maximum(at_times(daily, times), _LEAST_RATE)
    floor = jnp.maximum(y, 0.5)
    terms = jnp.where(seen, y * jnp.log(rate / floor) - (rate - floor), 0.0)
    return jnp.sum(terms, axis=-1).T
