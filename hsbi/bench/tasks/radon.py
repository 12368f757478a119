r"""Radon in the houses of Minnesota: 919 measurements in 85 counties of 1 to 116 houses.

.. math::

    \alpha_c \sim N(\mu + g u_c, \sigma_\alpha^2), \quad y_{ch} \sim N(\alpha_c + b x_{ch}, \sigma_y^2)

with log radon y, the county's soil uranium u (log ppm) and x = 1 for a measurement on the first floor, 0 in the
basement; :math:`\mu \sim N(0, 2^2)`, :math:`g, b \sim N(0, 1)` and half-normal scales. Given the two scales all is
Gaussian, so the posterior is a quadrature over their logarithms with a closed form in each cell.

The measurements are those of a survey of the Environmental Protection Agency of the United States, used by Price, Nero
and Gelman (1996), Health Physics 71, 922-936, in the form that ArviZ 0.23 ships under the Apache license.
"""

import csv
from importlib import resources
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.typing import ArrayLike

from hsbi.bench.tasks.quadrature import on_points, sample_density, zoom
from hsbi.bench.tasks.task import generator

GLOBALS = ("mu", "g", "b", "sigma_alpha", "sigma_y")
_PRIOR_SD = np.array([2.0, 1.0, 1.0])
# Below exp(-7) a scale is too small to matter and holds about 1e-3 of the prior's mass.
_LOG_SCALE_RANGE = (-7.0, 1.5)


class Houses(NamedTuple):
    """Padded data, counties first; NaN pads the measurements and 0 the floors.

    Attributes:
        county: Names, `[counties]`.
        uranium: Log of the soil's uranium in ppm, `[counties]`.
        floor: `[counties, houses]`.
        y: Log of radon in pCi/L, `[counties, houses]`.
    """

    county: list[str]
    uranium: np.ndarray
    floor: np.ndarray
    y: np.ndarray


def load() -> Houses:
    """Read the measurements."""
    with resources.files("hsbi.bench.tasks").joinpath("radon.csv").open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    names = list(dict.fromkeys(row["county"] for row in rows))
    members = {name: [row for row in rows if row["county"] == name] for name in names}
    most = max(map(len, members.values()))
    floor, y = np.zeros((len(names), most), np.float32), np.full((len(names), most), np.nan, np.float32)
    for place, houses in enumerate(members.values()):
        floor[place, : len(houses)] = [float(row["floor"]) for row in houses]
        y[place, : len(houses)] = [float(row["log_radon"]) for row in houses]
    uranium = np.array([float(houses[0]["uranium"]) for houses in members.values()], np.float32)
    return Houses(names, uranium, floor, y)


def model(floor: Array, uranium: Array, y: Array | None = None) -> None:
    """Write the model as a NumPyro program that NUTS and hsbi run unmodified; NaN in `y` is no house."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    g = numpyro.sample("g", dist.Normal(0.0, 1.0))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    sigma_alpha = numpyro.sample("sigma_alpha", dist.HalfNormal(1.0))
    sigma_y = numpyro.sample("sigma_y", dist.HalfNormal(1.0))
    observed = True if y is None else ~jnp.isnan(y)
    data = None if y is None else jnp.nan_to_num(y)
    with numpyro.plate("county", floor.shape[0], dim=-2):
        alpha = numpyro.sample("alpha", dist.Normal(mu + g * uranium[:, None], sigma_alpha))
        with numpyro.plate("house", floor.shape[1], dim=-1):
            radon = dist.Normal(alpha + b * floor, sigma_y).mask(observed)
            numpyro.sample("y", radon, obs=data, infer={"inputs": floor})


class _Counts(NamedTuple):
    """Sufficient statistics of the counties, `[counties, ...]`: sums over houses of products of (1, u, x) and y."""

    number: np.ndarray
    sums: np.ndarray
    products: np.ndarray
    y_sum: np.ndarray
    y_products: np.ndarray
    y_square: float
    uranium: np.ndarray


def reference(key: Array, floor: ArrayLike, uranium: ArrayLike, y: ArrayLike, num_draws: int) -> dict[str, np.ndarray]:
    """Draw from the exact posterior."""
    rng, counts = generator(key), _count(floor, uranium, y)
    axes, values = _zoom(counts)
    scales = np.exp(sample_density(rng, axes, values, lambda *logs: _solve(counts, *logs)[0], num_draws))
    _, mean, factor = _solve(counts, *np.log(scales).T)
    fixed = mean + np.einsum("kij,kj->ki", factor, rng.standard_normal(mean.shape))
    location, spread = _locals(counts, fixed, scales)
    alpha = location + spread * rng.standard_normal(location.shape)
    mu, g, b = fixed.T
    return {"mu": mu, "g": g, "b": b, "sigma_alpha": scales[:, 0], "sigma_y": scales[:, 1], "alpha": alpha}


def moments(floor: ArrayLike, uranium: ArrayLike, y: ArrayLike) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Give mean and standard deviation of every latent under the exact posterior."""
    counts = _count(floor, uranium, y)
    axes, values = _zoom(counts)
    logs = [grid.ravel() for grid in np.meshgrid(*axes, indexing="ij")]
    weights = np.exp(values.ravel() - values.max())
    weights /= weights.sum()
    scales = np.exp(np.stack(logs, axis=1))
    _, fixed, factor = _solve(counts, *logs)
    covariance = factor @ np.swapaxes(factor, 1, 2)
    location, spread = _locals(counts, fixed, scales)
    # The location of a county's intercept is linear in the coefficients.
    slope = np.stack([_locals(counts, np.eye(3)[[k]], scales)[0] for k in range(3)], axis=-1)
    slope -= _locals(counts, np.zeros((1, 3)), scales)[0][..., None]
    variance = spread**2 + np.einsum("kci,kij,kcj->kc", slope, covariance, slope)
    means = np.concatenate([fixed, scales, location], axis=1)
    variances = np.concatenate([np.diagonal(covariance, axis1=1, axis2=2), 0 * scales, variance], axis=1)
    mean = weights @ means
    sd = np.sqrt(weights @ (variances + (means - mean) ** 2))
    return {**{name: (mean[k], sd[k]) for k, name in enumerate(GLOBALS)}, "alpha": (mean[5:], sd[5:])}


def _count(floor: ArrayLike, uranium: ArrayLike, y: ArrayLike) -> _Counts:
    floor, uranium, y = np.asarray(floor, float), np.asarray(uranium, float), np.asarray(y, float)
    if y.ndim != 2 or floor.shape != y.shape or uranium.shape != y.shape[:1]:
        raise ValueError(
            f"Floors, uranium and data of task 'radon' have shapes {floor.shape}, {uranium.shape} and {y.shape}, "
            "expected (counties, houses), (counties,) and (counties, houses)."
        )
    seen = np.isfinite(y)
    design = np.stack([np.ones_like(y), np.broadcast_to(uranium[:, None], y.shape), floor], axis=-1) * seen[..., None]
    data = np.where(seen, y, 0.0)
    return _Counts(
        seen.sum(1),
        design.sum(1),
        np.einsum("chi,chj->cij", design, design),
        data.sum(1),
        np.einsum("chi,ch->ci", design, data),
        float((data**2).sum()),
        uranium,
    )


def _zoom(counts: _Counts) -> tuple[list[np.ndarray], np.ndarray]:
    low, high = ([end, end] for end in _LOG_SCALE_RANGE)
    return zoom(on_points(lambda *logs: _solve(counts, *logs)[0]), low, high, coarse=32, final=80)


def _solve(counts: _Counts, log_alpha: np.ndarray, log_y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    r"""Integrate intercepts and coefficients out, given log scales `[k]`.

    A county's measurements have covariance :math:`\sigma_y^2 I + \sigma_\alpha^2 1 1^T`, whose inverse is
    :math:`(I - s 1 1^T) / \sigma_y^2` with :math:`s = \sigma_\alpha^2 / (\sigma_y^2 + n \sigma_\alpha^2)`.

    Returns:
        The log density of the log scales, and mean `[k, 3]` and a root of the covariance `[k, 3, 3]` of (mu, g, b).
    """
    alpha, noise = np.exp(2 * log_alpha)[:, None], np.exp(2 * log_y)[:, None]
    share = alpha / (noise + counts.number * alpha)
    outer = counts.sums[:, :, None] * counts.sums[:, None, :]
    precision = counts.products.sum(0) - np.einsum("kc,cij->kij", share, outer)
    precision = precision / noise[..., None] + np.diag(_PRIOR_SD**-2.0)
    pull = (counts.y_products.sum(0) - share @ (counts.sums * counts.y_sum[:, None])) / noise
    square = (counts.y_square - share @ counts.y_sum**2) / noise[:, 0]
    lower = np.linalg.cholesky(precision)
    root = np.linalg.inv(lower)
    whitened = np.einsum("kij,kj->ki", root, pull)
    log_determinant = np.sum(
        counts.number * np.log(noise) + np.log1p(counts.number * alpha / noise), axis=1
    ) + 2 * np.sum(np.log(np.diagonal(lower, axis1=1, axis2=2)), axis=1)
    prior = log_alpha + log_y - 0.5 * (alpha + noise)[:, 0]
    log_density = prior - 0.5 * (log_determinant + square - np.sum(whitened**2, axis=1))
    return log_density, np.einsum("kji,kj->ki", root, whitened), np.swapaxes(root, 1, 2)


def _locals(counts: _Counts, fixed: np.ndarray, scales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Give mean and standard deviation of every county's intercept given all globals, `[k, counties]`."""
    alpha, noise = (scales[:, [k]] ** 2 for k in (0, 1))
    mu, g, b = (fixed[:, [k]] for k in range(3))
    precision = 1 / alpha + counts.number / noise
    pull = (mu + g * counts.uranium) / alpha + (counts.y_sum - b * counts.sums[:, 2]) / noise
    return pull / precision, precision**-0.5
