"""Likelihood-factorized inference: simulate single sites, learn surrogates, train a posterior on synthetic data."""

import dataclasses
import os
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, Literal

import jax
import numpy as np
from jax import Array

from hsbi.inference.arrays import (
    Coordinates,
    Design,
    fit_coordinates,
    observation_shapes,
    observation_supports,
    read_design,
)
from hsbi.inference.base import Inference
from hsbi.inference.batch import Synthetic, View
from hsbi.inference.designs import DesignFunction, Groups, pool_designs
from hsbi.inference.features import find_bound, fit_features, flatten_parameters
from hsbi.inference.joint import JointConfig, JointPosterior, fit_joint
from hsbi.inference.posterior import FactorizedConfig, Posterior
from hsbi.inference.rows import Raw, reshape_in_place
from hsbi.inference.scope import make_scope
from hsbi.inference.shared import fit_shared
from hsbi.inference.stages import fit_posterior
from hsbi.inference.surrogate import Surrogate, SurrogateConfig
from hsbi.inference.surrogate_fit import fit_surrogate, held_out_simulations, select_rows
from hsbi.inference.validity import Validity, fit_validity
from hsbi.model.host import Status
from hsbi.model.program import Program
from hsbi.model.simulate import Simulations, calls_per_site, simulate_sites
from hsbi.model.structure import Structure
from hsbi.model.transforms import observation_transform
from hsbi.simulation.execution import Execution
from hsbi.simulation.ledger import Ledger
from hsbi.simulation.shelf import Shelf
from hsbi.training import Checkpoint, Progress, jit

# Tokens of data sets held out for validation in all, and bounds on the number of data sets they make.
_HELD_OUT_TOKENS, _MIN_HELD_OUT, _MAX_HELD_OUT = 51_200, 64, 1024
# Values of an observation that its transform is scaled by, at most.
_MAX_SCALED = 2**18
# Folded into the key of the simulations for the designs that are drawn.
_POOL = 7


class LF(Inference):
    """Likelihood-factorized inference for a NumPyro model.

    Compare `MCMC(NUTS(model), num_warmup=..., num_samples=...)`: budgets are given here, data to `run`.

    Examples:
        >>> lf = hsbi.LF(model, num_simulations=5_000, num_samples=1_000)  # doctest: +SKIP
        >>> lf.run(jax.random.key(0), times, y=y)  # doctest: +SKIP
        >>> lf.print_summary()  # doctest: +SKIP
    """

    _settings = (*Inference._settings, "num_sites", "missing", "surrogate_config", "invalid")
    _state = (*Inference._state, "surrogate", "validity", "_trained_sites")

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        num_simulations: int,
        num_samples: int = 1000,
        num_sites: tuple[int, int] | None = None,
        design: DesignFunction | None = None,
        missing: float = 0.0,
        observed: Sequence[str] = (),
        surrogate_config: SurrogateConfig | None = None,
        posterior_config: FactorizedConfig | JointConfig | None = None,
        progress: Progress | bool = True,
        checkpoint: str | os.PathLike[str] | None = None,
        workers: int = 0,
        timeout: float | None = None,
        executor: Executor | None = None,
        store: str | os.PathLike[str] | None = None,
        invalid: Literal["model", "drop"] = "model",
    ) -> None:
        """Set up inference.

        Args:
            model: A NumPyro model.
            num_simulations: The budget: how many single-site simulator calls may be made in all.
            num_samples: Draws from the posterior.
            num_sites: The fewest and the most sites the posterior is trained for; by default the number in the
                arguments.
            design: A function of a key that draws the model's arguments by name, such as `{"times": times}`: schedules,
                covariates, masks and the number of sites that the posterior is trained for; by default the arguments of
                `run` or `simulate` are all.
            missing: The highest share of values missing at random that the posterior is trained for; whole sites may
                be missing too. The pattern of missing values in the arguments is always trained for.
            observed: Names of observed sites where the model is traced without data.
            surrogate_config: Hyperparameters of the surrogates.
            posterior_config: Hyperparameters of the posterior: `FactorizedConfig`, whose cost is linear in sites, or
                `JointConfig`, one transformer over all tokens.
            progress: Whether to show progress bars, or a callback that does.
            checkpoint: A folder where the states of training are kept, so that a killed `run` or `fit` goes on when it
                is called again with the same key; inside the store by default, if there is one.
            workers: Processes that run host simulators; 0 runs them in this one.
            timeout: The most seconds a call of a host simulator may take, with workers; no limit by default.
            executor: Any `concurrent.futures.Executor` to run host simulators instead of `workers`.
            store: A folder where simulations are kept as they are made, and found again by the same call.
            invalid: What failed simulations mean. `model`: the probability of a valid one given the parameters is part
                of the likelihood of data that were observed, and is learned; `drop`: it is left out.
        """
        if invalid not in ("model", "drop"):
            raise ValueError(f"invalid is {invalid!r}, expected 'model' or 'drop'.")
        if not 0.0 <= missing < 1.0:
            raise ValueError(f"missing is {missing}, expected a share of the values, at least 0 and below 1.")
        if design is not None and num_sites is not None:
            raise ValueError("Both design and num_sites are given. Let the design draw the number of sites.")
        super().__init__(
            model,
            num_simulations=num_simulations,
            num_samples=num_samples,
            num_sites=num_sites,
            observed=observed,
            progress=progress,
            checkpoint=checkpoint,
            execution=Execution(workers=workers, timeout=timeout, executor=executor),
            store=store,
        )
        self.surrogate_config = surrogate_config or SurrogateConfig()
        self.posterior_config = posterior_config or FactorizedConfig()
        self.design = design
        self.missing = missing
        self.simulations: Simulations | None = None
        self._trained_sites: tuple[int, int] | None = None
        self._groups: Groups | None = None
        self.surrogate: dict[str, Surrogate] = {}
        self.invalid = invalid
        self.validity: Validity | None = None
        # Rows of the simulations that no surrogate was fitted to, by observation.
        self._held_out: dict[str, np.ndarray] = {}

    def simulate(self, rng_key: Array, *args: Any, **kwargs: Any) -> Simulations:
        """Spend the budget of simulations at draws from the prior; a second call starts over with a new ledger.

        Args:
            rng_key: A random key.
            *args: The model's arguments; data among them may be None. With a `design` they are not needed.
            **kwargs: The model's keyword arguments.
        """
        if self.design is not None:
            return self._simulate(rng_key, None)
        return super().simulate(rng_key, *args, **kwargs)

    def _simulate(self, key: Array, program: Program | None) -> Simulations:
        """Simulate one site at a time until the budget is spent."""
        self._groups, self._trained_sites = None, self.num_sites
        if self.design is not None:
            pool_key = jax.random.fold_in(key, _POOL)
            program, self._groups = pool_designs(self.model, self.design, pool_key, self.observed)
            self._trained_sites = self._groups.site_range
        assert program is not None
        self._check_range(program)
        self.ledger = Ledger({"simulate": self.num_simulations})
        started = time.perf_counter()
        calls = calls_per_site(program)
        if calls > self.num_simulations:
            raise ValueError(
                f"One site takes {calls} simulator calls, but num_simulations is {self.num_simulations}. Raise it."
            )
        bar = self._progress("simulations", self.num_simulations // calls)
        self.simulations = simulate_sites(
            program,
            key,
            self.num_simulations // calls,
            ledger=self.ledger,
            progress=lambda done, total, note: bar.update(done, note),
            caller=self.execution,
            shelf=None if self.store is None else Shelf(self.store, program, key),
        )
        bar.close()
        self._program = program
        jax.block_until_ready(self.simulations)
        self.timings["simulate"] = time.perf_counter() - started
        return self.simulations

    def fit(self, rng_key: Array, *, checkpoint: str | os.PathLike[str] | None = None) -> None:
        """Train surrogates on the simulations, then the posterior on what surrogates generate.

        Args:
            rng_key: A random key.
            checkpoint: A folder where the states of training are kept; that of the constructor by default.
        """
        program, simulations = self._program, self.simulations
        if program is None or simulations is None:
            raise ValueError("There are no simulations yet. Call simulate first.")
        states = self._open_checkpoint(rng_key, checkpoint)
        prior_key, surrogate_key, held_out_key, posterior_key = jax.random.split(rng_key, 4)
        started = time.perf_counter()
        coordinates = fit_coordinates(program, prior_key)
        design = read_design(program)
        self._scope = make_scope(program, design, hidden=self.missing > 0, many=self._groups is not None)
        if isinstance(self.posterior_config, JointConfig) and self.posterior_config.shared:
            drawn = _finite_latents(simulations)
            simulations = simulations if drawn.all() else jax.tree.map(lambda array: array[drawn], simulations)
            self._fit_shared(posterior_key, self.posterior_config, coordinates, design, simulations, states)
            self.timings["posterior"] = time.perf_counter() - started
            return
        surrogates, valid = self._fit_surrogates(surrogate_key, program, simulations, design, states)
        self.surrogate = {surrogate.shape.name: surrogate for surrogate in surrogates}
        self.validity = self._fit_validity(surrogate_key, program, simulations, design, valid, states)
        self.timings["surrogate"] = time.perf_counter() - started
        started = time.perf_counter()
        source = Synthetic(
            num_sites=self._site_range(program.structure),
            program=program,
            coordinates=coordinates,
            surrogates=surrogates,
            design=design,
            validity=self.validity,
            missing=self.missing,
            groups=self._groups,
        )
        self._fit_posterior(posterior_key, held_out_key, source, states)
        self.timings["posterior"] = time.perf_counter() - started

    def _fit_surrogates(
        self, key: Array, program: Program, simulations: Simulations, design: Design, states: Checkpoint | None
    ) -> tuple[tuple[Surrogate, ...], np.ndarray]:
        """Give a surrogate of each observation, and which simulations are valid."""
        supports = observation_supports(program)
        surrogates: list[Surrogate] = []
        valid, drawn = simulations.usable, _finite_latents(simulations)
        for number, shape in enumerate(observation_shapes(program.structure)):
            noise_key, fit_key = jax.random.split(jax.random.fold_in(key, number))
            names = shape.parents
            parameters = flatten_parameters(names, simulations.values, design.covariates[simulations.index])
            inputs = design.inputs.get(shape.name)
            features = fit_features(names, parameters if drawn.all() else parameters[drawn], inputs)
            raw = simulations.observations[shape.name]
            values = reshape_in_place(raw, (-1, shape.points, shape.width))
            self._note_range(shape.name, raw)
            every = max(1, values.size // _MAX_SCALED)
            transform = observation_transform(supports[shape.name], values[::every].reshape(-1, shape.width))
            bound = find_bound(supports[shape.name], design.covariates)
            bound = None if bound is None else parameters.shape[-1] - design.covariates.shape[-1] + bound
            surrogate = Surrogate.unfitted(shape, self.surrogate_config, features, transform, bound)
            is_log = transform.kind == "count"
            rows = Raw(
                parameters=parameters,
                site=simulations.index,
                inputs=inputs,
                values=values,
                weights=features.weights(features(parameters), logarithmic=is_log),
            )
            # Failures were reported as they happened; what else is not usable is reported here.
            failed = np.repeat(simulations.status[shape.name] != Status.OK, shape.replicates)
            chosen = select_rows(rows, surrogate, noise_key, failed)
            usable = np.zeros(failed.size, bool)
            usable[chosen] = True
            valid &= np.all(usable.reshape(-1, shape.replicates), axis=1)
            self._held_out[shape.name] = held_out_simulations(fit_key, surrogate, rows, chosen)
            watch = {"progress": self._progress, "checkpoint": states}
            surrogate, losses = fit_surrogate(fit_key, surrogate, rows, chosen, **watch)
            surrogates.append(surrogate)
            self.losses.update({f"surrogate of {shape.name}: {stage}": value for stage, value in losses.items()})
        return tuple(surrogates), valid

    def _fit_validity(
        self,
        key: Array,
        program: Program,
        simulations: Simulations,
        design: Design,
        valid: np.ndarray,
        states: Checkpoint | None,
    ) -> Validity | None:
        """Learn where simulations fail, unless it is to be left out."""
        drawn = _finite_latents(simulations)
        valid = valid[drawn]
        if valid.all():
            return None
        if self.invalid == "drop":
            warnings.warn(
                f"{np.count_nonzero(~valid)} of {valid.size} simulations are not valid and are left out. With "
                "invalid='drop' the posterior is that of a simulator which does not fail.",
                stacklevel=4,
            )
            return None
        return fit_validity(
            jax.random.fold_in(key, len(program.structure.observations)),
            program.structure,
            {name: value[drawn] for name, value in simulations.values.items()},
            design.covariates[simulations.index[drawn]],
            valid,
            progress=self._progress,
            checkpoint=states,
        )

    def _fit_posterior(self, key: Array, held_out_key: Array, source: Synthetic, states: Checkpoint | None) -> None:
        config = self.posterior_config
        num_sites = source.num_sites[1]
        num_tokens = num_sites * max(surrogate.shape.num_tokens for surrogate in source.surrogates)
        num_held_out = max(_MIN_HELD_OUT, min(_MAX_HELD_OUT, _HELD_OUT_TOKENS // num_tokens))
        held_out = _draw(source, held_out_key, num_held_out)
        view = make_view(source.surrogates, source.design, source.missing)
        if isinstance(config, JointConfig):
            self.posterior, losses = fit_joint(
                key,
                JointPosterior.unfitted(config, source.program.structure, source.coordinates, view, num_sites),
                source,
                held_out,
                progress=self._progress,
                checkpoint=states,
            )
        else:
            if source.validity is not None:
                # The surrogates' densities do not say how likely a valid simulation is.
                config = dataclasses.replace(config, refine=False)
            posterior = Posterior(
                config=config, coordinates=source.coordinates, view=view, surrogates=source.surrogates
            )
            self.posterior, losses = fit_posterior(
                key, source.program, posterior, source, held_out, progress=self._progress, checkpoint=states
            )
        self.losses.update({f"posterior: {stage}": value for stage, value in losses.items()})

    def _fit_shared(
        self,
        key: Array,
        config: JointConfig,
        coordinates: Coordinates,
        design: Design,
        simulations: Simulations,
        states: Checkpoint | None,
    ) -> None:
        program = self._program
        assert program is not None
        for name, value in simulations.observations.items():
            self._note_range(name, value)
        source = Synthetic(
            num_sites=self._site_range(program.structure),
            program=program,
            coordinates=coordinates,
            surrogates=(),
            design=design,
        )
        self.surrogate, self.validity = {}, None
        self.posterior, losses = fit_shared(
            key, config, source, simulations, progress=self._progress, checkpoint=states
        )
        self.losses.update({f"posterior: {stage}": value for stage, value in losses.items()})

    def _check_range(self, program: Program) -> None:
        if self._groups is not None:
            return
        low, high = self._site_range(program.structure)
        if (
            program.route != "resize"
            and (low, high) != (program.num_sites, program.num_sites)
            and high != program.num_sites
        ):
            raise ValueError(
                f"num_sites is ({low}, {high}), but the model has {program.num_sites} sites and cannot be run at "
                f"another number: {program.reason} Leave num_sites at its default."
            )

    def _source(self) -> Synthetic:
        """Give the source of data sets that the posterior was trained on."""
        program, posterior = self._program, self._trained()
        assert program is not None
        return Synthetic(
            num_sites=self._site_range(program.structure),
            program=program,
            coordinates=posterior.coordinates,
            surrogates=self._surrogates(),
            design=read_design(program),
            validity=self.validity,
            missing=self.missing,
            groups=self._groups,
        )

    def _held_out_rows(self, name: str) -> Simulations | None:
        """Give the simulations that the surrogate of an observation was not fitted to, or None if they are gone."""
        if self.simulations is None or name not in self._held_out:
            return None
        return jax.tree.map(lambda array: array[self._held_out[name]], self.simulations)

    def _surrogates(self) -> tuple[Surrogate, ...]:
        return tuple(self.surrogate.values())

    def _site_range(self, structure: Structure) -> tuple[int, int]:
        return self._trained_sites or super()._site_range(structure)

    def __str__(self) -> str:
        """Say what was done, and what the posterior is trained for."""
        if self.posterior is None or self._program is None:
            return repr(self)
        low, high = self._site_range(self._program.structure)
        lines = [repr(self), "Trained for", f"  sites: {low if low == high else f'{low} to {high}'}"]
        lines += [] if self._scope is None else [f"  {line}" for line in self._scope.lines()]
        if self.missing:
            lines.append(f"  missing values: up to {self.missing:.0%} at random, and whole sites")
        return "\n".join(lines)

    def __repr__(self) -> str:
        """Say what was done."""
        state = "trained" if self.posterior is not None else "not trained"
        sites = "" if self._program is None else f", num_sites={self._site_range(self._program.structure)}"
        return f"LF({getattr(self.model, '__name__', 'model')}, num_simulations={self.num_simulations}{sites}, {state})"


def make_view(surrogates: Sequence[Surrogate], design: Design, missing: float = 0.0) -> View:
    """Show networks the observations as the surrogates see them."""
    shapes = tuple(surrogate.shape for surrogate in surrogates)
    return View(
        shapes=shapes,
        missing=tuple(shape.name for shape in shapes if missing > 0 or shape.name in design.masks),
        covariates=fit_features((), design.covariates, None),
        transforms={surrogate.shape.name: surrogate.transform for surrogate in surrogates},
        inputs={surrogate.shape.name: surrogate.features for surrogate in surrogates},
    )


def _finite_latents(simulations: Simulations) -> np.ndarray:
    """Say which simulations have finite prior draws; the others were not simulated."""
    finite = np.ones(simulations.index.shape[0], bool)
    for value in simulations.values.values():
        finite &= np.all(np.isfinite(value), axis=tuple(range(1, value.ndim)))
    return finite


_draw = jit(lambda source, key, num_sets: source.draw(key, num_sets), static_argnums=2)
