"""Check observed data on plain arrays: do they lie within what was simulated, and does the posterior fit them?"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jax.scipy.special import ndtr

# Relative to the largest eigenvalue; directions in which nothing varies do not decide.
_LEAST_VARIANCE = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObservationCheck:
    """What was found of the observed data.

    Attributes:
        labels: Names of the sites, each after that of the plate.
        distance: Distance of each site's data from the center of what was simulated, in standard deviations, `[sites]`.
        limit: The largest such distance in a data set, its quantiles over simulated data sets of 50, 95 and 100 %.
        site_p_value: Share of simulated data sets that hold a site as far out as the farthest observed one.
        summary_p_value: Share of simulated data sets whose summaries over sites are as far out as the observed ones.
        predictive_p_value: Posterior predictive p-value of each site, `[sites]`; small where data fit worse than
            replicates.
        total_p_value: The same over all sites, two-sided.
        misfit: Each site's misfit per known value, averaged over draws, `[sites]`.
        misfit_limit: The largest such misfit in a replicate of the data, its quantiles over replicates of 50, 95 and
            100 %.
        plate: Name of the plate; empty without one.
    """

    labels: tuple[str, ...]
    distance: np.ndarray
    limit: np.ndarray
    site_p_value: float
    summary_p_value: float
    predictive_p_value: np.ndarray | None = None
    total_p_value: float = 1.0
    misfit: np.ndarray | None = None
    misfit_limit: np.ndarray | None = None
    plate: str = ""

    @property
    def outside(self) -> tuple[str, ...]:
        """The sites that lie farther out than any simulated one."""
        return tuple(label for label, far in zip(self.labels, self.distance > self.limit[-1], strict=True) if far)

    @property
    def misfits(self) -> tuple[str, ...]:
        """The sites that fit worse than any replicate of any site, the worst first."""
        if self.misfit is None or self.misfit_limit is None:
            return ()
        bad = np.flatnonzero(self.misfit > self.misfit_limit[-1])
        return tuple(self.labels[place] for place in bad[np.argsort(-self.misfit[bad])])

    @property
    def p_values(self) -> tuple[float, ...]:
        """The p-values that a verdict rests on."""
        return self.site_p_value, self.summary_p_value, self.total_p_value


def check_observation(
    observed: np.ndarray,
    simulated: np.ndarray,
    observed_summary: np.ndarray,
    simulated_summary: np.ndarray,
    *,
    labels: Sequence[str],
    plate: str = "",
    mask: np.ndarray | None = None,
    discrepancy: tuple[np.ndarray, np.ndarray] | None = None,
    num_known: np.ndarray | None = None,
) -> ObservationCheck:
    """Compare observed data with simulated data sets.

    Observed and simulated data sets are exchangeable if the model is right, so the rank of the observed distance among
    the simulated ones gives an exact p-value.

    Args:
        observed: Features of each site's data, `[sites, features]`.
        simulated: The same of simulated data sets, `[datasets, sites, features]`.
        observed_summary: Summaries over sites, `[features]`.
        simulated_summary: The same of simulated data sets, `[datasets, features]`.
        labels: Names of the sites, such as `clinic 3`.
        plate: Name of the plate, such as `clinic`.
        mask: Which simulated sites are real, `[datasets, sites]`.
        discrepancy: A positive measure of misfit by draw and site, `[draws, sites]`, of the observed data and of
            replicates at the same draws.
        num_known: The number of known values of each site, `[sites]`, by which its misfit is divided; 1 by default.
    """
    mask = np.ones(simulated.shape[:2], bool) if mask is None else mask
    metric = _metric(simulated[mask])
    distance = _distance(metric, observed)
    largest = np.where(mask, _distance(metric, simulated), 0.0).max(1)
    metric = _metric(simulated_summary)
    own, others = _distance(metric, observed_summary), _distance(metric, simulated_summary)
    check = ObservationCheck(
        labels=tuple(labels),
        plate=plate,
        distance=distance,
        limit=np.quantile(largest, [0.5, 0.95, 1.0]),
        site_p_value=_share(largest >= distance.max()),
        summary_p_value=_share(others >= own),
    )
    if discrepancy is None:
        return check
    observed_misfit, replicated = discrepancy
    total = predictive_tail(observed_misfit.sum(1), replicated.sum(1))
    counts = np.maximum(1 if num_known is None else num_known, 1)
    return dataclasses.replace(
        check,
        predictive_p_value=predictive_tail(observed_misfit, replicated),
        total_p_value=float(min(1.0, 2 * min(total, 1 - total))),
        misfit=observed_misfit.mean(0) / counts,
        misfit_limit=np.quantile((replicated / counts).max(1), [0.5, 0.95, 1.0]),
    )


def predictive_tail(observed: np.ndarray, replicated: np.ndarray) -> np.ndarray:
    """Give the probability that replicates misfit as much as the data, along the first axis of draws.

    The cube root of a sum of squares is close to normal, so the tail is that of the normal with the mean and spread of
    the difference: finer than a count of draws can be.
    """
    difference = np.cbrt(replicated) - np.cbrt(observed)
    spread = difference.std(0)
    return np.asarray(ndtr(difference.mean(0) / np.where(spread > 0, spread, 1.0)), float)


def _share(extreme: np.ndarray) -> float:
    return float((1 + extreme.sum()) / (1 + extreme.size))


def _metric(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the map to unit covariance."""
    center = rows.mean(0)
    values, vectors = np.linalg.eigh(np.atleast_2d(np.cov(rows - center, rowvar=False)))
    useful = values > _LEAST_VARIANCE * max(values.max(), 1e-30)
    return center, vectors[:, useful] / np.sqrt(values[useful])


def _distance(metric: tuple[np.ndarray, np.ndarray], rows: np.ndarray) -> np.ndarray:
    """Give the distance from the center, per root of the number of dimensions, so that 1 is usual."""
    center, matrix = metric
    return np.linalg.norm((rows - center) @ matrix, axis=-1) / np.sqrt(max(1, matrix.shape[1]))
