"""Classifier two-sample tests: of two samples, and of an amortized posterior at one observation."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from hsbi.diagnostics.classifier import Classifier, expand, predict, train, training_rows, whitening
from hsbi.diagnostics.distances import as_samples


class C2st(NamedTuple):
    """Accuracy of a classifier that tells two samples apart.

    Attributes:
        accuracy: Held-out accuracy, the mean over the two samples: 0.5 if they cannot be told apart, 1 if they always
            can.
        standard_error: Its standard error under equal distributions if folds were independent. They share training
            rows, so accuracies scatter by up to a third more; `c2st_test` gives a valid p-value.
    """

    accuracy: float
    standard_error: float


class C2stTest(NamedTuple):
    """Outcome of a classifier two-sample test.

    Attributes:
        accuracy: Held-out accuracy, as `c2st` gives it.
        p_value: Share of relabelings with as high an accuracy.
        nulls: Accuracies after random relabelings.
    """

    accuracy: float
    p_value: float
    nulls: np.ndarray


class Lc2st(NamedTuple):
    """Outcome of a local classifier two-sample test.

    Attributes:
        statistic: Mean squared distance of the classifier's probability from one half at draws for the observation: 0
            if draws cannot be told from true values, 0.25 if they always can.
        p_value: Share of null statistics that are as large.
        nulls: Statistics with truths and draws swapped at random.
        accuracy: Held-out accuracy of the classifier over all data sets.
    """

    statistic: float
    p_value: float
    nulls: np.ndarray
    accuracy: float


def c2st(key: Array, x: ArrayLike, y: ArrayLike, *, num_folds: int = 5, classifier: Classifier | None = None) -> C2st:
    r"""Train a classifier to tell two samples apart, and measure how often it is right on draws it has not seen.

    Every draw is classified once, by the classifier trained without its fold. With n draws of x and m of y,

    .. math:: \mathrm{C2ST} = \frac12 \left( \frac1n \sum_i 1[d(x_i) = 0] + \frac1m \sum_i 1[d(y_i) = 1] \right).

    Small biases hardly move it: 0.3 standard deviations in one of four dimensions give about 0.55, so look at means and
    scales as well.

    Args:
        key: A random key for folds and training.
        x: Independent draws, `[n, ...]`.
        y: Independent draws of the same quantities, `[m, ...]`.
        num_folds: Number of folds.
        classifier: Settings of the classifier.

    Returns:
        The accuracy and its standard error.
    """
    x, y = as_samples(x, y, least=2 * num_folds)
    accuracy = _accuracies(key, x, y, num_folds, classifier or Classifier(), num_nulls=0)
    return C2st(float(accuracy[0]), float(np.sqrt(1 / len(x) + 1 / len(y)) / 4))


def c2st_test(
    key: Array,
    x: ArrayLike,
    y: ArrayLike,
    *,
    num_nulls: int = 99,
    num_folds: int = 5,
    classifier: Classifier | None = None,
) -> C2stTest:
    """Test whether two samples have one distribution, by permutations of the classifier's accuracy.

    All of the procedure, training included, is repeated with draws dealt to the two samples at random.

    Args:
        key: A random key for folds, relabelings and training.
        x: Independent draws, `[n, ...]`.
        y: Independent draws of the same quantities, `[m, ...]`.
        num_nulls: Random relabelings; no p-value is below 1 / (num_nulls + 1).
        num_folds: Number of folds.
        classifier: Settings of the classifier.

    Returns:
        The accuracy of `c2st`, its p-value and the accuracies under relabeling.
    """
    x, y = as_samples(x, y, least=2 * num_folds)
    if num_nulls < 1:
        raise ValueError(f"num_nulls is {num_nulls}, expected 1 or more.")
    accuracy = _accuracies(key, x, y, num_folds, classifier or Classifier(), num_nulls)
    return C2stTest(float(accuracy[0]), float(np.mean(accuracy >= accuracy[0])), accuracy[1:])


def lc2st(
    key: Array,
    truths: ArrayLike,
    draws: ArrayLike,
    data: ArrayLike,
    observed_draws: ArrayLike,
    observed: ArrayLike,
    *,
    num_nulls: int = 100,
    num_folds: int = 2,
    classifier: Classifier | None = None,
) -> Lc2st:
    r"""Test an amortized posterior at one observation, without draws from the exact one.

    A classifier learns to tell (truth, data) from (draw, data) over simulated data sets. With :math:`\bar d` the
    mean of its probabilities over folds, the statistic at the observation is

    .. math:: T = \frac1M \sum_{j=1}^{M} \left( \bar d(\theta_j, y_{obs}) - \tfrac12 \right)^2, \qquad
        \theta_j \sim q(\theta \mid y_{obs}).

    Under the null, truth and draw of a data set can be swapped; classifiers trained in the same way on randomly swapped
    pairs give its distribution, and p = (1 + #{T_null >= T}) / (num_nulls + 1). A pair is never split between training
    and held-out part. The test is only as sharp as its classifier: a small statistic is no proof.

    Args:
        key: A random key for folds, swaps and training.
        truths: True values, `[datasets, ...]`.
        draws: One posterior draw per data set, of the shape of `truths`.
        data: Data or summaries of each data set, `[datasets, ...]`.
        observed_draws: Posterior draws for the observation, `[draws, ...]`.
        observed: The observation, of the shape of one row of `data`.
        num_nulls: Number of null trainings.
        num_folds: Number of folds, each with a classifier of its own.
        classifier: Settings of the classifier.

    Returns:
        The statistic, its p-value, the null statistics and the held-out accuracy.
    """
    config = classifier or Classifier()
    _check_folds(num_folds)
    theta, guess = as_samples(truths, draws, least=2 * num_folds)
    at, _ = as_samples(observed_draws, np.asarray(truths), least=2)
    y, y_observed = _check_data(len(theta), len(guess), data, observed)
    num_pairs = len(theta)
    inputs = np.concatenate([np.concatenate([theta, y], axis=1), np.concatenate([guess, y], axis=1)])
    white = whitening(inputs)
    features = jnp.asarray(expand(inputs, white))
    there = np.concatenate([at, np.broadcast_to(y_observed, (len(at), y.shape[1]))], axis=1)
    there = jnp.asarray(expand(there, white))

    key_folds, key_swaps, key_train = jax.random.split(key, 3)
    pair_folds = _random_folds(key_folds, num_pairs, num_folds)
    folds = np.concatenate([pair_folds, pair_folds])
    swapped = np.array(jax.random.bernoulli(key_swaps, 0.5, (num_nulls + 1, num_pairs)))
    swapped[0] = False
    labels = np.concatenate([~swapped, swapped], axis=1).astype(np.float32)
    params = train(
        key_train,
        features,
        jnp.asarray(np.repeat(labels, num_folds, axis=0)),
        jnp.asarray(np.tile(training_rows(folds, num_folds), (num_nulls + 1, 1))),
        num_inputs=inputs.shape[1],
        config=config,
    )
    odds = predict(params, there, num_inputs=inputs.shape[1])
    probability = np.asarray(jax.nn.sigmoid(odds), float).reshape(num_nulls + 1, num_folds, -1).mean(1)
    statistics = np.mean((probability - 0.5) ** 2, axis=1)
    first = jax.tree.map(lambda leaf: leaf[:num_folds], params)
    scores = np.asarray(predict(first, features, num_inputs=inputs.shape[1]))
    accuracy = np.mean((scores[folds, np.arange(len(folds))] > 0) == (labels[0] > 0))
    p_value = np.mean(statistics >= statistics[0])
    return Lc2st(float(statistics[0]), float(p_value), statistics[1:], float(accuracy))


def _accuracies(
    key: Array, x: np.ndarray, y: np.ndarray, num_folds: int, config: Classifier, num_nulls: int
) -> np.ndarray:
    """Give the held-out accuracy of the samples as they are, then of random relabelings."""
    _check_folds(num_folds)
    num_x, inputs = len(x), np.concatenate([x, y])
    truth = (np.arange(len(inputs)) >= num_x).astype(np.float32)
    key_x, key_y, key_train, key_nulls = jax.random.split(key, 4)
    folds = np.concatenate([_random_folds(key_x, num_x, num_folds), _random_folds(key_y, len(y), num_folds)])
    rows = [np.flatnonzero(folds != fold) for fold in range(num_folds)]
    # Equal numbers of both samples in training keep the classifier from betting on the larger one.
    rows = np.stack([_balanced(row, truth[row], 2 * max(num_x, len(y))) for row in rows])
    keys = jax.random.split(key_nulls, num_nulls)
    orders = [np.arange(len(inputs)), *(np.asarray(jax.random.permutation(k, len(inputs))) for k in keys)]
    # A relabeling puts draw order[i] in place i; labels, folds and training rows belong to places.
    labels = np.stack([truth[np.argsort(order)] for order in orders])
    features = jnp.asarray(expand(inputs, whitening(inputs)))
    params = train(
        key_train,
        features,
        jnp.asarray(np.repeat(labels, num_folds, axis=0)),
        jnp.asarray(np.concatenate([order[rows] for order in orders])),
        num_inputs=inputs.shape[1],
        config=config,
    )
    scores = np.asarray(predict(params, features, num_inputs=inputs.shape[1]))
    scores = scores.reshape(num_nulls + 1, num_folds, len(inputs))
    at_places = np.stack([score[folds, order] for score, order in zip(scores, orders, strict=True)])
    correct = (at_places > 0) == (truth > 0)
    return (correct[:, :num_x].mean(1) + correct[:, num_x:].mean(1)) / 2


def _check_folds(num_folds: int) -> None:
    if num_folds < 2:
        raise ValueError(f"num_folds is {num_folds}, expected 2 or more: draws are judged by others' classifiers.")


def _check_data(num_truths: int, num_draws: int, data: ArrayLike, observed: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Flatten the data of each data set and the observation."""
    data, observed = np.asarray(data, float), np.asarray(observed, float)
    if not num_truths == num_draws == len(data) or data.shape[1:] != observed.shape:
        raise ValueError(
            f"Got {num_truths} true values, {num_draws} draws, data of shape {data.shape} and an observation of shape "
            f"{observed.shape}; expected one draw and one row of data per true value, and an observation like one row."
        )
    if not (np.all(np.isfinite(data)) and np.all(np.isfinite(observed))):
        raise ValueError("Data or the observation hold values that are not finite. Pass summaries that are finite.")
    return data.reshape(len(data), -1), observed.reshape(-1)


def _random_folds(key: Array, count: int, num_folds: int) -> np.ndarray:
    """Deal rows to folds of equal size, in random order."""
    return np.asarray(jax.random.permutation(key, np.arange(count) % num_folds))


def _balanced(rows: np.ndarray, labels: np.ndarray, size: int) -> np.ndarray:
    """Repeat the rows of both labels to half of `size` each."""
    return np.concatenate([np.resize(rows[labels == label], size // 2) for label in (0, 1)])
