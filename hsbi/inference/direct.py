"""Direct inference: a posterior trained on simulations of the whole program, the baseline for LF."""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hsbi.inference.arrays import (
    Design,
    fit_coordinates,
    observation_shapes,
    observation_supports,
    read_design,
)
from hsbi.inference.base import Inference
from hsbi.inference.batch import Batch, Observed, Stored, View, at_sites
from hsbi.inference.features import fit_features
from hsbi.inference.joint import JointConfig, JointPosterior, fit_joint
from hsbi.inference.posterior import FactorizedConfig, Posterior
from hsbi.inference.scope import make_scope
from hsbi.inference.stages import fit_posterior
from hsbi.model.program import Program
from hsbi.model.simulate import calls_per_site, simulate_all
from hsbi.model.transforms import observation_transform
from hsbi.simulation.execution import Execution
from hsbi.simulation.ledger import Ledger
from hsbi.simulation.shelf import Shelf
from hsbi.training import Progress, jit

_HELD_OUT = 0.1


class DataSets(NamedTuple):
    """Simulated data sets, data sets first.

    Attributes:
        index: The program's site that each site of a data set stands for, `[B, S]`.
        mask: `[B, S]`, true where a site was simulated.
        values: Latents by name, in canonical layout.
        observations: Observations by name, in canonical layout.
    """

    index: Array  # pyright: ignore[reportIncompatibleMethodOverride]
    mask: Array
    values: dict[str, Array]
    observations: dict[str, Array]


class Direct(Inference):
    """Train the same posterior on whole data sets from the real simulator, without surrogates.

    A data set of S sites costs S simulations, so a budget of N makes N / S data sets.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        num_simulations: int,
        num_samples: int = 1000,
        observed: Sequence[str] = (),
        posterior_config: FactorizedConfig | JointConfig | None = None,
        progress: Progress | bool = True,
        checkpoint: str | os.PathLike[str] | None = None,
        workers: int = 0,
        timeout: float | None = None,
        executor: Executor | None = None,
        store: str | os.PathLike[str] | None = None,
    ) -> None:
        """Set up inference.

        Args:
            model: A NumPyro model.
            num_simulations: The budget: how many single-site simulator calls may be made in all.
            num_samples: Draws from the posterior.
            observed: Names of observed sites where the model is traced without data.
            posterior_config: Hyperparameters of the posterior.
            progress: Whether to show progress bars, or a callback that does.
            checkpoint: A folder where the states of training are kept, so that a killed `run` or `fit` goes on when it
                is called again with the same key; inside the store by default, if there is one.
            workers: Processes that run host simulators; 0 runs them in this one.
            timeout: The most seconds a call of a host simulator may take, with workers; no limit by default.
            executor: Any `concurrent.futures.Executor` to run host simulators instead of `workers`.
            store: A folder where simulations are kept as they are made, and found again by the same call.
        """
        if isinstance(posterior_config, JointConfig) and posterior_config.shared:
            raise ValueError(
                "posterior_config has shared=True, but Direct has no surrogates whose place a network could take. "
                "Use hsbi.LF, or JointConfig(shared=False)."
            )
        super().__init__(
            model,
            num_simulations=num_simulations,
            num_samples=num_samples,
            num_sites=None,
            observed=observed,
            progress=progress,
            checkpoint=checkpoint,
            execution=Execution(workers=workers, timeout=timeout, executor=executor),
            store=store,
        )
        self.posterior_config = posterior_config or FactorizedConfig()
        self.simulations: tuple[dict[str, Array], dict[str, Array]] | None = None

    def _simulate(self, key: Array, program: Program) -> tuple[dict[str, Array], dict[str, Array]]:
        """Simulate whole data sets until the budget is spent; gives latents and observations, data sets first."""
        self.ledger = Ledger({"simulate": self.num_simulations})
        per_set = program.num_sites * calls_per_site(program)
        num_sets = self.num_simulations // per_set
        if num_sets < 2:
            raise ValueError(
                f"A data set of {program.num_sites} sites takes {per_set} simulator calls, and num_simulations is "
                f"{self.num_simulations}; at least two data sets are needed, one of them for validation. Raise it."
            )
        started = time.perf_counter()
        bar = self._progress("simulations", num_sets)
        self.simulations = simulate_all(
            program,
            key,
            num_sets,
            ledger=self.ledger,
            progress=lambda done, total, note: bar.update(done, note),
            caller=self.execution,
            shelf=None if self.store is None else Shelf(self.store, program, key, whole=True),
        )
        bar.close()
        self._program = program
        self.timings["simulate"] = time.perf_counter() - started
        return self.simulations

    def fit(self, rng_key: Array, *, checkpoint: str | os.PathLike[str] | None = None) -> None:
        """Train the posterior on the simulations, a tenth of them held out.

        Args:
            rng_key: A random key.
            checkpoint: A folder where the states of training are kept; that of the constructor by default.
        """
        program = self._program
        if program is None or self.simulations is None:
            raise ValueError("There are no simulations yet. Call simulate first.")
        states = self._open_checkpoint(rng_key, checkpoint)
        started = time.perf_counter()
        prior_key, posterior_key = jax.random.split(rng_key)
        sets = self._data_sets(program)
        coordinates, design = fit_coordinates(program, prior_key), read_design(program)
        self._scope = make_scope(program, design)
        real = np.asarray(sets.mask)
        simulated = {name: value if real.all() else value[real] for name, value in sets.observations.items()}
        for name, value in simulated.items():
            self._note_range(name, value)
        view = fit_view(program, design, simulated)

        def one(own: DataSets) -> Batch:
            there, seen = at_sites(program, design, own.index)
            observed: Observed = view.observe(own.observations, seen)._replace(site_mask=own.mask)
            return Batch(own.index, coordinates.encode(there, own.values), observed)

        batch = jit(jax.vmap(one))(sets)
        num_held_out = max(1, int(_HELD_OUT * batch.index.shape[0]))
        held_out = jax.tree.map(lambda array: array[:num_held_out], batch)
        source = Stored(batch=jax.tree.map(lambda array: array[num_held_out:], batch))
        config = self.posterior_config
        if isinstance(config, JointConfig):
            start = JointPosterior.unfitted(config, program.structure, coordinates, view, program.num_sites)
            self.posterior, losses = fit_joint(
                posterior_key, start, source, held_out, progress=self._progress, checkpoint=states
            )
        else:
            start = Posterior(config=config, coordinates=coordinates, view=view)
            self.posterior, losses = fit_posterior(
                posterior_key, program, start, source, held_out, progress=self._progress, checkpoint=states
            )
        self.losses.update({f"posterior: {stage}": value for stage, value in losses.items()})
        self.timings["posterior"] = time.perf_counter() - started

    def _data_sets(self, program: Program) -> DataSets:
        """Give the data sets without failed simulations."""
        assert self.simulations is not None
        values, observations = self.simulations
        everyone = np.ones((next(iter(observations.values())).shape[0], program.num_sites), bool)
        return usable_sets(everyone, values, observations)


def fit_view(program: Program, design: Design, observations: dict[str, Array]) -> View:
    """Show networks the observations of a program, with transforms fitted to simulated ones, `[rows, ...]` each."""
    shapes, supports = observation_shapes(program.structure), observation_supports(program)
    return View(
        shapes=shapes,
        missing=tuple(design.masks),
        covariates=fit_features((), design.covariates, None),
        transforms={
            shape.name: observation_transform(supports[shape.name], observations[shape.name].reshape(-1, shape.width))
            for shape in shapes
        },
        inputs={shape.name: fit_features((), design.covariates, design.inputs.get(shape.name)) for shape in shapes},
    )


def usable_sets(mask: np.ndarray, values: dict[str, Array], observations: dict[str, Array]) -> DataSets:
    """Leave out data sets with a simulation that failed.

    That loses nothing: observed data are valid, and given the data the latents of valid data sets are distributed as
    those of all.

    Args:
        mask: Which sites were simulated, `[B, S]`.
        values: Latents by name.
        observations: Observations by name.
    """
    usable = np.ones(len(mask), bool)
    for value in (*values.values(), *observations.values()):
        array = np.asarray(value)
        good = np.isfinite(array) if array.dtype.kind == "f" else array != np.iinfo(array.dtype).min
        usable &= np.all(good, axis=tuple(range(1, array.ndim)))
    kept = np.flatnonzero(usable)
    if kept.size < 2:
        raise ValueError(
            f"{kept.size} of {usable.size} data sets are without failed simulations, expected at least 2. "
            "Check the simulator, or raise num_simulations."
        )
    index = jnp.broadcast_to(jnp.arange(mask.shape[1]), mask.shape)
    sets = DataSets(index, jnp.asarray(mask), values, observations)
    return sets if usable.all() else jax.tree.map(lambda array: array[kept], sets)
