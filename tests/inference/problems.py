"""Problems with exact posteriors, and the checks that draws must pass."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

SCHOOLS_Y = jnp.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
SCHOOLS_SIGMA = jnp.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
# By quadrature: mu, tau, then theta of the eight schools.
SCHOOLS_MEAN = np.array([4.397, 3.598, 6.212, 4.940, 3.927, 4.757, 3.616, 4.043, 6.297, 4.854])
SCHOOLS_SD = np.array([3.318, 3.220, 5.593, 4.674, 5.263, 4.780, 4.658, 4.827, 5.078, 5.291])

SURGICAL_DEATHS = jnp.array([0, 18, 8, 46, 8, 13, 9, 31, 14, 8, 29, 24])
SURGICAL_TRIALS = jnp.array([47, 148, 119, 810, 211, 196, 148, 215, 207, 97, 256, 360])
# By quadrature: mu, sigma, then b of the twelve hospitals.
SURGICAL_GLOBAL_MEANS = (-2.5594, 0.4462)
SURGICAL_B_MEANS = (
    *(-3.0224, -2.1617, -2.6155, -2.7819, -2.9778, -2.6294),
    *(-2.6808, -1.9513, -2.6158, -2.4927, -2.1713, -2.6304),
)
SURGICAL_MEAN = np.array([*SURGICAL_GLOBAL_MEANS, *SURGICAL_B_MEANS])
SURGICAL_SD = np.array(
    [0.1614, 0.1644, 0.4724, 0.2381, 0.2825, 0.1439, 0.2876, 0.2397, 0.2711, 0.2040, 0.2336, 0.2882, 0.1916, 0.1895]
)


def eight_schools(sigma, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("school", sigma.shape[0]):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def surgical(trials, deaths=None):
    mu = numpyro.sample("mu", dist.Normal(-2.5, 1.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with numpyro.plate("hospital", trials.shape[0]):
        b = numpyro.sample("b", dist.Normal(mu, sigma))
        numpyro.sample("deaths", dist.Binomial(trials, logits=b), obs=deaths)


def stack(samples, names):
    """Put the marginals of several sites side by side, `[draws, marginals]`."""
    parts = [np.asarray(samples[name], float) for name in names]
    return np.concatenate([part.reshape(part.shape[0], -1) for part in parts], axis=1)


def failures(draws, mean, sd, *, mean_bound, ratio_bounds):
    """List the marginals whose mean or standard deviation is too far from the exact one."""
    error = np.abs(draws.mean(0) - mean) / sd
    ratio = draws.std(0) / sd
    wrong = (error > mean_bound) | (ratio < ratio_bounds[0]) | (ratio > ratio_bounds[1])
    return [f"{i}: mean off by {error[i]:.2f} sd, sd ratio {ratio[i]:.2f}" for i in np.flatnonzero(wrong)]
