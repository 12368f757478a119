"""What all inference classes share: binding a model, drawing from a trained posterior, and giving results."""

import dataclasses
import functools
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hsbi.inference.arrays import Design, read_design
from hsbi.inference.batch import Observed, synthesize
from hsbi.inference.identity import training_facts
from hsbi.inference.joint import JointPosterior
from hsbi.inference.posterior import Posterior
from hsbi.inference.reweigh import Efficiency, can_reweigh, reweigh
from hsbi.inference.scope import Scope, refuse_missing
from hsbi.model.data import observed_data, refuse_impossible_counts
from hsbi.model.draws import draw_latents, recompute, redraw_locals
from hsbi.model.program import Program
from hsbi.model.routes import bind
from hsbi.model.simulate import simulate_given
from hsbi.model.structure import Site, Structure
from hsbi.model.trace import restore
from hsbi.results import summary_table, to_arviz
from hsbi.simulation.execution import Execution
from hsbi.simulation.ledger import Ledger
from hsbi.training import Checkpoint, Progress, jit, no_progress, show_progress

# Data are called far outside when they leave the simulated range by more than this fraction of its width.
_MARGIN = 0.5
# Rows whose range is found at once.
_ROWS_AT_ONCE = 4096


class Inference:
    """A model and an amortized posterior of it.

    Subclasses say how it is trained; this class draws from it.
    """

    # What a saved estimator holds: keywords of the constructor, kept as attributes, and what training adds.
    _settings: tuple[str, ...] = ("num_simulations", "num_samples", "observed", "posterior_config")
    _state: tuple[str, ...] = ("timings", "losses", "posterior", "_ranges", "_scope")

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        num_simulations: int,
        num_samples: int,
        num_sites: tuple[int, int] | None,
        observed: Sequence[str],
        progress: Progress | bool,
        checkpoint: str | os.PathLike[str] | None = None,
        execution: Execution | None = None,
        store: str | os.PathLike[str] | None = None,
    ) -> None:
        """Keep the settings."""
        for name, value in (("num_simulations", num_simulations), ("num_samples", num_samples)):
            if value < 1:
                raise ValueError(f"{name} is {value}, expected at least 1.")
        if num_sites is not None and not 1 <= num_sites[0] <= num_sites[1]:
            raise ValueError(f"num_sites is {num_sites}, expected (low, high) with 1 <= low <= high.")
        self.model = model
        self.num_simulations = num_simulations
        self.num_samples = num_samples
        self.num_sites = num_sites
        self.observed = tuple(observed)
        self.checkpoint = checkpoint
        self.execution = execution or Execution()
        self.store = store
        self.ledger = Ledger({"simulate": num_simulations})
        self.timings: dict[str, float] = {}
        self.losses: dict[str, np.ndarray] = {}
        self.posterior: Posterior | JointPosterior | None = None
        self._progress = show_progress if progress is True else no_progress if progress is False else progress
        self._program: Program | None = None
        self._ranges: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self._scope: Scope | None = None
        self._routes: dict[str, Program] = {}
        self._drawn: tuple[Program, dict[str, Array], Array] | None = None
        self.efficiency: Efficiency | None = None

    def simulate(self, rng_key: Array, *args: Any, **kwargs: Any) -> Any:
        """Spend the budget of simulations at draws from the prior; a second call starts over with a new ledger.

        Args:
            rng_key: A random key.
            *args: The model's arguments; data among them may be None.
            **kwargs: The model's keyword arguments.
        """
        return self._simulate(rng_key, self._bind(args, kwargs))

    def fit(self, rng_key: Array, *, checkpoint: str | os.PathLike[str] | None = None) -> None:
        """Train on the simulations."""
        raise NotImplementedError

    def _open_checkpoint(self, key: Array, path: str | os.PathLike[str] | None) -> Checkpoint | None:
        """Open the folder where the states of training are kept: the one given, that of the class, or the store's."""
        path = self.checkpoint if path is None else path
        if path is not None:
            return Checkpoint(path, training_facts(self, key))
        # One store serves many runs, each with a folder of its own.
        return None if self.store is None else Checkpoint.keyed(Path(self.store) / "fits", training_facts(self, key))

    def _simulate(self, key: Array, program: Program) -> Any:
        raise NotImplementedError

    def run(self, rng_key: Array, *args: Any, **kwargs: Any) -> None:
        """Simulate, train and draw from the posterior given the data among the arguments.

        Args:
            rng_key: A random key.
            *args: The model's arguments.
            **kwargs: The model's keyword arguments.
        """
        simulate_key, fit_key, sample_key = jax.random.split(rng_key, 3)
        program = self._bind(args, kwargs)
        # Before any simulation is paid for: the data must be there and usable.
        self._read_data(program)
        self._simulate(simulate_key, program)
        self.fit(fit_key)
        self._sample(sample_key, program, self.num_samples)

    def sample(self, rng_key: Array, *args: Any, num_samples: int | None = None, **kwargs: Any) -> dict[str, Array]:
        """Draw from the trained posterior given data, without training again.

        Args:
            rng_key: A random key.
            *args: The model's arguments, new data among them.
            num_samples: The number of draws; that of the class by default.
            **kwargs: The model's keyword arguments.

        Returns:
            Draws by site as NumPyro's `get_samples` gives them, deterministic sites included.
        """
        self._trained()
        self._sample(rng_key, self._bind(args, kwargs), num_samples or self.num_samples)
        return self.get_samples()

    def _sample(self, key: Array, program: Program, num_samples: int) -> None:
        posterior = self._trained()
        self._check_structure(program.structure)
        data = self._read_data(program)
        started = time.perf_counter()
        design = read_design(program)
        self._check_design(program, design)
        observed = posterior.view.observe(data, design)
        self._warn_of_strange_data(program.structure, data, observed)
        has_empty = bool(program.structure.locals) and bool(posterior.view.missing)
        # Data sets of one shape share one compilation, whatever they lack.
        plain = dataclasses.replace(program, structure=program.structure.without_data())
        values, self.efficiency = _sample(posterior, plain, observed, key, num_samples, has_empty)
        jax.block_until_ready(values)
        self.timings["sample"] = time.perf_counter() - started
        self._drawn = (program, values, jax.random.fold_in(key, 1))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trained estimator to one file, which `hsbi.load` reads.

        Args:
            path: Where to write, such as `schools.hsbi`; an existing file is replaced.
        """
        from hsbi.inference.saved import save

        save(self, path)

    def get_samples(self, group_by_chain: bool = False) -> dict[str, Array]:
        """Give the draws of the last `run` or `sample`.

        Args:
            group_by_chain: Whether to keep a first axis for the chain, of which there is one.
        """
        program, values, _ = self._last()
        draws = {name: restore(program.structure[name], value) for name, value in values.items()}
        return {name: value[None] for name, value in draws.items()} if group_by_chain else draws

    def print_summary(self, prob: float = 0.9) -> None:
        """Print a table of the draws.

        Args:
            prob: The mass of the interval.
        """
        _, values, _ = self._last()
        print(summary_table({name: np.asarray(value) for name, value in values.items()}, prob=prob))

    def posterior_predictive(self, rng_key: Array, *, simulator: bool = False) -> dict[str, Array]:
        """Draw observations at the posterior's draws.

        Args:
            rng_key: A random key.
            simulator: Whether to call the real simulator, once per draw and site, which the ledger counts under
                `posterior_predictive`; by default surrogates answer.
        """
        program = self._last()[0]
        drawn = self._predict(rng_key, simulator)
        return {name: restore(program.structure[name], value) for name, value in drawn.items()}

    def to_arviz(
        self,
        *,
        coords: Mapping[str, Sequence[Any]] | None = None,
        dims: Mapping[str, Sequence[str]] | None = None,
        prior: bool = False,
        simulator: bool = False,
    ) -> Any:
        """Give the draws as arviz data, with the names, dims and coords that `hsbi.from_mcmc` gives a NUTS run.

        Args:
            coords: Labels by dim.
            dims: Names by site for the axes after chain and draw.
            prior: Whether to add as many draws from the prior.
            simulator: Whether the posterior predictive comes from the real simulator, which the ledger counts.
        """
        program, values, key = self._last()
        structure = program.structure
        predicted = self._predict(key, simulator) if simulator or self._surrogates() else None
        data, _ = observed_data(program)
        num_draws = next(iter(values.values())).shape[0]
        prior_draws = draw_latents(program, jax.random.fold_in(key, 2), num_draws) if prior else None
        return to_arviz(
            structure,
            posterior=_chain(values),
            posterior_predictive=None if predicted is None else _chain(predicted),
            observed_data={name: np.asarray(value) for name, value in data.items()},
            constant_data=_covariates(program),
            prior=None if prior_draws is None else _chain(prior_draws),
            coords=coords,
            dims=dims,
        )

    def _predict(self, key: Array, simulator: bool) -> dict[str, Array]:
        program, values, _ = self._last()
        latents = {name: values[name] for name in (*program.structure.globals, *program.structure.locals)}
        if simulator:
            return simulate_given(
                program, key, latents, ledger=self.ledger, phase="posterior_predictive", caller=self.execution
            )
        surrogates = self._surrogates()
        if not surrogates:
            raise ValueError("There is no surrogate to draw observations from. Pass simulator=True.")
        return _predict(surrogates, program, read_design(program), latents, key)

    def _surrogates(self) -> tuple[Any, ...]:
        return ()

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Program:
        return bind(self.model, args, kwargs, observed=self.observed, known=self._routes)

    def _trained(self) -> Posterior | JointPosterior:
        if self.posterior is None:
            raise ValueError("There is no trained posterior yet. Call run, or simulate and fit, first.")
        return self.posterior

    def _last(self) -> tuple[Program, dict[str, Array], Array]:
        if self._drawn is None:
            raise ValueError("There are no draws yet. Call run, or sample after fit, first.")
        return self._drawn

    def _read_data(self, program: Program) -> dict[str, Array]:
        refuse_impossible_counts(program)
        data, _ = observed_data(program)
        absent = [name for name in program.structure.observations if name not in data]
        if absent:
            raise ValueError(
                f"Observation {', '.join(map(repr, absent))} has no data. Pass the data as the model's argument."
            )
        return data

    def _check_design(self, program: Program, design: Design) -> None:
        """Refuse or warn of arguments that the posterior was not trained for."""
        refuse_missing(design, self._trained().view.missing)
        notes = [] if self._scope is None else self._scope.complaints(program, design)
        if notes:
            warnings.warn(
                f"The arguments lie outside what the posterior was trained for: {'; '.join(notes)}. "
                "Train with design= or missing= to cover them.",
                stacklevel=4,
            )

    def _check_structure(self, structure: Structure) -> None:
        trained = self._program.structure if self._program is not None else structure
        facts = [{site.name: self._comparable(site) for site in each.sites} for each in (trained, structure)]
        if facts[0] != facts[1]:
            names = sorted(name for name in facts[0] | facts[1] if facts[0].get(name) != facts[1].get(name))
            raise ValueError(
                f"The arguments give another model than the one trained: {', '.join(map(repr, names))} "
                f"{'differs' if len(names) == 1 else 'differ'} in level, plates or shape. "
                "Pass arguments of the same shapes, but for the number of sites."
            )
        low, high = self._site_range(trained)
        if not low <= structure.num_sites <= high:
            warnings.warn(
                f"The data have {structure.num_sites} sites, but the posterior was trained for "
                f"{low if low == high else f'{low} to {high}'}. Train with num_sites=(low, high) to cover them.",
                stacklevel=3,
            )

    def _comparable(self, site: Site) -> tuple[Any, ...]:
        """Give what a site must have in common with the one trained, but for the number of sites.

        A set of tokens may have any size: points of a function, or replicates, where there was more than one.
        """
        flexible = isinstance(self.posterior, Posterior) and any(
            shape.name == site.name and shape.num_tokens > 1 for shape in self.posterior.view.shapes
        )
        if not flexible:
            return site.level, site.event_shape, site.plates, site.shape[1:] if site.level != "global" else ()
        event = len(site.event_shape) if site.inputs is not None else site.event_shape
        return site.level, event, site.plates, len(site.shape)

    def _site_range(self, structure: Structure) -> tuple[int, int]:
        return self.num_sites or (structure.num_sites, structure.num_sites)

    def _note_range(self, name: str, simulated: Array) -> None:
        values = np.asarray(simulated)
        ends: list[Any] = []
        # Some rows at a time: a mask of all would be a quarter of a copy.
        for start in range(0, len(values), _ROWS_AT_ONCE):
            part = values[start : start + _ROWS_AT_ONCE]
            # Failed simulations are NaN, or the smallest integer.
            real = np.isfinite(part) if part.dtype.kind == "f" else part != np.iinfo(part.dtype).min
            if real.any():
                some = part.flat[np.argmax(real)]
                ends += [f(part, initial=some, where=real) for f in (np.min, np.max)]
        if ends:
            self._ranges[name] = (np.asarray(min(ends), float), np.asarray(max(ends), float))

    def _warn_of_strange_data(self, structure: Structure, data: Mapping[str, Array], observed: Observed) -> None:
        for name, (low, high) in self._ranges.items():
            value = np.asarray(data[name], float)
            slack = _MARGIN * (high - low)
            outside = (value < low - slack) | (value > high + slack) | ~np.isfinite(value)
            outside &= np.asarray(observed.known(name)).reshape(value.shape)
            if outside.any():
                place = tuple(int(axis) for axis in np.argwhere(outside)[0])
                where = f" at site {place[0]}" if structure.site_plate is not None else ""
                warnings.warn(
                    f"{int(outside.sum())} values of {name!r} lie outside what was simulated: the first is "
                    f"{value[place]:g}{where}, simulations went from {low:g} to {high:g}. "
                    "Draws there are extrapolations; widen the prior or check the data.",
                    stacklevel=3,
                )


def _chain(values: Mapping[str, Array]) -> dict[str, np.ndarray]:
    return {name: np.asarray(value)[None] for name, value in values.items()}


def _covariates(program: Program) -> dict[str, np.ndarray] | None:
    from hsbi.model.program import map_leaves

    wanted = {covariate.path for covariate in program.structure.covariates if covariate.data is None}
    found: dict[str, np.ndarray] = {}

    def read(path: str, leaf: Any) -> Any:
        if path in wanted:
            found[path] = np.asarray(leaf)
        return leaf

    map_leaves(read, program.arguments)
    return found or None


@functools.partial(jit, static_argnames=("num_draws", "has_empty"))
def _sample(
    posterior: Posterior | JointPosterior,
    program: Program,
    observed: Observed,
    key: Array,
    num_draws: int,
    has_empty: bool = False,
) -> tuple[dict[str, Array], Efficiency | None]:
    latents, efficiency = posterior.sample(program, observed, key, num_draws), None
    if isinstance(posterior, Posterior) and can_reweigh(posterior):
        latents, efficiency = reweigh(posterior, program, observed, latents, jax.random.fold_in(key, 3))

    def finish(draw: Any, own: Array) -> dict[str, Array]:
        values = posterior.coordinates.decode(program, draw)
        if has_empty:
            values |= _redraw_empty(program, own, values, observed.has_data)
        return {**values, **recompute(program, values)}

    return jax.vmap(finish)(latents, jax.random.split(jax.random.fold_in(key, 2), num_draws)), efficiency


def _redraw_empty(program: Program, key: Array, values: dict[str, Array], has_data: Array) -> dict[str, Array]:
    """Draw the locals of sites without any data from their prior given the globals: that is their posterior."""
    drawn = redraw_locals(program, key, values)
    return {
        name: jnp.where(has_data.reshape(-1, *(1,) * (value.ndim - 1)), values[name], value)
        for name, value in drawn.items()
    }


@jit
def _predict(
    surrogates: tuple[Any, ...], program: Program, design: Design, values: dict[str, Array], key: Array
) -> dict[str, Array]:
    num_draws = next(iter(values.values())).shape[0]

    def one(task: tuple[dict[str, Array], Array]) -> dict[str, Array]:
        drawn = synthesize(program, surrogates, task[0], design, task[1])
        return {
            s.shape.name: s.transform.decode(drawn[s.shape.name]).reshape(program.structure[s.shape.name].shape)
            for s in surrogates
        }

    return jax.lax.map(one, (values, jax.random.split(key, num_draws)), batch_size=64)
