"""Posterior factorization: globals learned from data sets of few and many sites, locals from single sites."""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hsbi.inference.direct import DataSets, Direct, usable_sets
from hsbi.inference.posterior import FactorizedConfig
from hsbi.model.draws import draw_latents
from hsbi.model.program import Program
from hsbi.model.simulate import calls_per_site, simulate_chosen
from hsbi.model.structure import Structure
from hsbi.simulation.ledger import Ledger
from hsbi.training import Progress


class PF(Direct):
    """Train the factorized posterior on data sets of 1 to S sites from the real simulator, without surrogates.

    A global estimator q(theta_g | y) learns from whole data sets, a local one q(eta_s | theta_g, y_s) from their sites
    one by one. Sizes of data sets are drawn by stick-breaking, so that the budget is spent to the last simulation.
    Compared with `Direct`, more values of the globals are seen, from smaller data sets.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        num_simulations: int,
        num_samples: int = 1000,
        observed: Sequence[str] = (),
        posterior_config: FactorizedConfig | None = None,
        progress: Progress | bool = True,
        checkpoint: str | os.PathLike[str] | None = None,
        workers: int = 0,
        timeout: float | None = None,
        executor: Executor | None = None,
    ) -> None:
        """Set up inference.

        Args:
            model: A NumPyro model.
            num_simulations: The budget: how many single-site simulator calls may be made in all.
            num_samples: Draws from the posterior.
            observed: Names of observed sites where the model is traced without data.
            posterior_config: Hyperparameters of the posterior, which is the factorized one.
            progress: Whether to show progress bars, or a callback that does.
            checkpoint: A folder where the states of training are kept, so that a killed `fit` goes on when it is called
                again with the same key.
            workers: Processes that run host simulators; 0 runs them in this one.
            timeout: The most seconds a call of a host simulator may take, with workers; no limit by default.
            executor: Any `concurrent.futures.Executor` to run host simulators instead of `workers`.
        """
        if posterior_config is not None and not isinstance(posterior_config, FactorizedConfig):
            raise ValueError(
                f"posterior_config is {type(posterior_config).__name__}, but posterior factorization has an estimator "
                "for each level. Pass a FactorizedConfig, or use hsbi.Direct."
            )
        super().__init__(
            model,
            num_simulations=num_simulations,
            num_samples=num_samples,
            observed=observed,
            posterior_config=posterior_config,
            progress=progress,
            checkpoint=checkpoint,
            workers=workers,
            timeout=timeout,
            executor=executor,
        )
        self._simulated: np.ndarray | None = None

    def _simulate(self, key: Array, program: Program) -> tuple[dict[str, Array], dict[str, Array]]:
        """Simulate data sets of random sizes until the budget is spent.

        Sites that were not simulated repeat the data of one that was; nothing looks at them.
        """
        self.ledger = Ledger({"simulate": self.num_simulations})
        size_key, prior_key, data_key = jax.random.split(key, 3)
        num_rows = self.num_simulations // calls_per_site(program)
        mask = choose_simulated(size_key, num_rows, program.num_sites)
        started = time.perf_counter()
        draws, sites = np.nonzero(mask)
        bar = self._progress("simulations", num_rows)
        values = draw_latents(program, prior_key, len(mask))
        rows = simulate_chosen(
            program,
            data_key,
            values,
            draws,
            sites,
            ledger=self.ledger,
            progress=lambda done, total, note: bar.update(done, note),
            caller=self.execution,
        )
        bar.close()
        self.simulations = values, {name: _spread(program, mask, value) for name, value in rows.items()}
        self._simulated, self._program = mask, program
        self.timings["simulate"] = time.perf_counter() - started
        return self.simulations

    def _data_sets(self, program: Program) -> DataSets:
        assert self.simulations is not None
        assert self._simulated is not None
        return usable_sets(self._simulated, *self.simulations)

    def _site_range(self, structure: Structure) -> tuple[int, int]:
        return 1, structure.num_sites


def break_stick(key: Array, total: int, longest: int) -> np.ndarray:
    """Break a total into random whole pieces, each uniform on 1 to the longest or to what is left.

    Args:
        key: A random key.
        total: What the pieces add up to.
        longest: The longest piece.

    Returns:
        The pieces, in order.
    """
    if total < 2 or longest < 1:
        raise ValueError(
            f"{total} simulations cannot be broken into data sets of 1 to {longest} sites; at least two data sets are "
            "needed, one of them for validation. Raise num_simulations."
        )
    rng = np.random.default_rng(np.asarray(jax.random.bits(key, (4,), "uint32")))
    pieces = [int(rng.integers(1, min(longest, total - 1) + 1))]
    left = total - pieces[0]
    while left:
        pieces.append(int(rng.integers(1, min(longest, left) + 1)))
        left -= pieces[-1]
    return np.asarray(pieces)


def choose_simulated(key: Array, total: int, num_sites: int) -> np.ndarray:
    """Choose which sites of which data sets are simulated, `total` in all, `[data sets, sites]`."""
    size_key, order_key = jax.random.split(key)
    sizes = break_stick(size_key, total, num_sites)
    order = np.argsort(np.asarray(jax.random.uniform(order_key, (len(sizes), num_sites))), axis=1)
    return np.argsort(order, axis=1) < sizes[:, None]


def _spread(program: Program, mask: np.ndarray, rows: Array) -> Array:
    """Put the rows of simulated sites in their places, `[data sets, sites, ...]`."""
    if program.structure.site_plate is None:
        return rows
    number = np.cumsum(mask).reshape(mask.shape) - 1
    first = number[np.arange(len(mask)), np.argmax(mask, axis=1)]
    return rows[jnp.asarray(np.where(mask, number, first[:, None]))]
