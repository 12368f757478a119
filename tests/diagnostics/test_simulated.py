"""Summaries and fits of simulated data sets leave out what is missing."""

import jax
import jax.numpy as jnp
import numpy as np

from hsbi.diagnostics.simulated import fit_summary
from hsbi.inference.arrays import Design
from hsbi.inference.batch import Observed


def make(values, known):
    sites = values.shape[:-3]
    design = Design(jnp.zeros((*sites, 0)), {}, {"y": jnp.asarray(known)})
    return Observed({"y": jnp.where(known, values, 0.0)}, design, jnp.ones(sites, bool))


def summary_of(key, points=4):
    values = jax.random.normal(key, (50, 6, 3, points, 1))
    return fit_summary(make(values, np.ones(values.shape, bool)))


def test_summary_averages_known_values_only():
    summary = summary_of(jax.random.key(0))
    values = jax.random.normal(jax.random.key(1), (5, 3, 4, 1))
    known = np.ones(values.shape, bool)
    known[2, 0] = False
    fewer = np.asarray(summary.sites(make(values, known)))[2]
    # The site without its first replicate is the site that only has the other two.
    alone = np.asarray(summary.sites(make(values[2:3, 1:], np.ones((1, 2, 4, 1), bool))))[0]
    np.testing.assert_allclose(fewer, alone, rtol=1e-5, atol=1e-5)
    whole = np.asarray(summary.sites(make(values, np.ones(values.shape, bool))))[2]
    assert np.abs(fewer - whole).max() > 0.01


def test_summary_takes_fewer_points_than_it_was_chosen_from():
    summary = summary_of(jax.random.key(0))
    values = jax.random.normal(jax.random.key(1), (5, 3, 4, 1))
    known = np.ones(values.shape, bool)
    known[:, :, 2:] = False
    short = make(values[:, :, :2], np.ones((5, 3, 2, 1), bool))
    np.testing.assert_allclose(summary.sites(short), summary.sites(make(values, known)), rtol=1e-5, atol=1e-5)
    longer = make(jnp.concatenate([values, values], axis=2), np.ones((5, 3, 8, 1), bool))
    directions = summary.basis.shape[1]
    np.testing.assert_allclose(
        summary.sites(longer)[:, :directions],
        summary.sites(make(values, np.ones(values.shape, bool)))[:, :directions],
        rtol=1e-5,
        atol=1e-5,
    )
