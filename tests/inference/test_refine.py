"""The surrogates' opinion of the globals, against closed forms of schools with an exact surrogate."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
import scipy.stats

from hsbi.inference.batch import Observed
from hsbi.inference.linear import Linear
from hsbi.inference.linearize import log_marginal
from hsbi.inference.refine import Opinion, Refinement, seek_mode
from hsbi.networks.heads import Gaussian
from tests.inference.linear_gaussian import SCALE, school_coordinates, school_design, school_surrogate
from tests.model.programs import EFFECTS, ERRORS, NUM_SCHOOLS, schools_program

SURROGATE = school_surrogate()


def observe(known=None):
    values = SURROGATE.transform.center(jnp.asarray(EFFECTS, jnp.float32).reshape(NUM_SCHOOLS, 1, 1, 1))
    design = school_design(ERRORS)
    if known is not None:
        mask = jnp.asarray(known).reshape(values.shape)
        values, design = jnp.where(mask, values, 0.0), design._replace(masks={"y": mask})
    return Observed({"y": values}, design, jnp.ones(NUM_SCHOOLS, bool))


def exact_log_marginal(mu, log_tau):
    """Give log N(y; mu, tau^2 + sigma^2) of the standardized data, without its constant."""
    density = scipy.stats.norm.logpdf(EFFECTS, mu, np.sqrt(np.exp(2 * log_tau) + ERRORS**2))
    return density + np.log(SCALE) + 0.5 * np.log(2 * np.pi)


def test_marginal_of_a_straight_surrogate_is_exact():
    run = jax.jit(lambda g: log_marginal(schools_program(), school_coordinates(), (SURROGATE,), g, observe()))
    for mu, log_tau in ((4.0, 1.5), (-3.0, 0.2), (10.0, 2.5)):
        found = run(jnp.asarray([mu, log_tau]))
        np.testing.assert_allclose(found, exact_log_marginal(mu, log_tau), rtol=2e-4, atol=2e-4)


def test_missing_sites_say_nothing():
    known = np.arange(NUM_SCHOOLS) != 2
    found = jax.jit(lambda g: log_marginal(schools_program(), school_coordinates(), (SURROGATE,), g, observe(known)))(
        jnp.asarray([4.0, 1.5])
    )
    assert found[2] == 0.0
    np.testing.assert_allclose(found[known], exact_log_marginal(4.0, 1.5)[known], rtol=2e-4, atol=2e-4)


def test_mode_and_curvature_are_those_of_the_exact_density():
    # A standard normal prior of mu and log tau, and schools: the optimum by SciPy in double precision.
    def objective(x):
        return -np.sum(exact_log_marginal(*x)) + 0.5 * np.sum(np.asarray(x) ** 2)

    best = scipy.optimize.minimize(objective, [1.0, 0.5], tol=1e-10)
    # A network whose location is half a scale off in both coordinates.
    scale = np.array([0.9, 0.8])
    gaussian = Gaussian(jnp.asarray(best.x - 0.5 * scale, jnp.float32), jnp.log(jnp.asarray(scale, jnp.float32)))
    found = jax.jit(lambda: seek_mode(schools_program(), school_coordinates(), (SURROGATE,), gaussian, observe()))()
    np.testing.assert_allclose(found.mode, [0.5, 0.5], atol=5e-3)

    def precision(step=1e-3):
        basis = np.eye(2) * step
        return np.array(
            [
                [
                    objective(best.x + a + b)
                    - objective(best.x + a - b)
                    - objective(best.x - a + b)
                    + objective(best.x - a - b)
                    for b in basis
                ]
                for a in basis
            ]
        ) / (4 * step**2)

    factor = np.linalg.cholesky(precision() * np.outer(scale, scale))
    np.testing.assert_allclose(found.log_scale, -np.log(np.diagonal(factor)), atol=2e-2)


def test_refined_residuals_come_back():
    refinement = Refinement(linear=Linear(jnp.asarray([[0.7], [0.1], [0.2]]), jnp.asarray([[0.0], [0.5], [-0.1]])))
    refined = refinement(Opinion(jnp.asarray([[1.0], [-2.0]]), jnp.asarray([[0.3], [0.4]])))
    np.testing.assert_allclose(refined.shift[:, 0], [0.7 + 0.03 + 0.2, -1.4 + 0.04 + 0.2], rtol=1e-5)
    np.testing.assert_allclose(refined.log_factor[:, 0], [0.05, 0.1], rtol=1e-5)
    residual = jnp.asarray([[0.4], [3.0]])
    np.testing.assert_allclose(refined.whiten(refined.color(residual)), residual, rtol=1e-5)
