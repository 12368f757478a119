"""Save a trained estimator as one file and load it again, with every check that needs no data."""

import os
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hsbi.inference.arrays import Coordinates, ObservationShape, read_design
from hsbi.inference.base import Inference
from hsbi.inference.batch import View
from hsbi.inference.codec import Decoder, Encoder
from hsbi.inference.direct import Direct
from hsbi.inference.features import ParameterFeatures
from hsbi.inference.identity import describe_arguments, structure_facts, versions
from hsbi.inference.joint import JointConfig, JointPosterior
from hsbi.inference.law import Law
from hsbi.inference.lf import LF
from hsbi.inference.linear import Linear
from hsbi.inference.pf import PF
from hsbi.inference.posterior import FactorizedConfig, Posterior, Weights
from hsbi.inference.scope import Scope
from hsbi.inference.scores import CountNoise
from hsbi.inference.surrogate import Surrogate, SurrogateConfig, _Networks
from hsbi.inference.validity import Classifier, Validity
from hsbi.model.arguments import unbind_arguments
from hsbi.model.densities import list_other_densities, probe_densities
from hsbi.model.program import Program
from hsbi.model.structure import Covariate, Plate, Site, Structure
from hsbi.model.trace import inspect
from hsbi.model.transforms import ObservationTransform, Standardizer
from hsbi.simulation.ledger import Ledger
from hsbi.tokens import Layout, Variable
from hsbi.training import FitConfig, Progress
from hsbi.training.archive import read_archive, write_archive
from hsbi.training.facts import list_differences

_KIND, _VERSION = "estimator", 1
_ESTIMATORS: dict[str, type[Inference]] = {"Direct": Direct, "LF": LF, "PF": PF}
# All that a file can make: nothing else is ever constructed, and each has exactly the fields that were saved.
_CLASSES: dict[str, type] = {
    "Classifier": Classifier,
    "Coordinates": Coordinates,
    "CountNoise": CountNoise,
    "Covariate": Covariate,
    "FactorizedConfig": FactorizedConfig,
    "FitConfig": FitConfig,
    "JointConfig": JointConfig,
    "JointPosterior": JointPosterior,
    "Law": Law,
    "Layout": Layout,
    "Linear": Linear,
    "Networks": _Networks,
    "ObservationShape": ObservationShape,
    "ObservationTransform": ObservationTransform,
    "ParameterFeatures": ParameterFeatures,
    "Plate": Plate,
    "Posterior": Posterior,
    "Scope": Scope,
    "Site": Site,
    "Standardizer": Standardizer,
    "Structure": Structure,
    "Surrogate": Surrogate,
    "SurrogateConfig": SurrogateConfig,
    "Validity": Validity,
    "Variable": Variable,
    "View": View,
    "Weights": Weights,
}
_PROGRAM = ("structure", "route", "reason", "by_plate", "input_paths")


def save(estimator: Inference, path: str | os.PathLike[str]) -> None:
    """Write a trained estimator to a file; `load` is the inverse.

    The file holds weights, settings, losses, timings, counts, the structure of the model and the arguments it was
    trained with, but neither the model's code nor simulations, draws or data: an argument that is the data of an
    observation is replaced by a constant of the same shape.

    Args:
        estimator: The estimator, trained.
        path: Where to write; an existing file is replaced when the new one is complete.
    """
    estimator._trained()
    program = estimator._program
    assert program is not None
    encoder = Encoder(_CLASSES)
    arguments, reason = describe_arguments(estimator)
    facts = {
        "class": type(estimator).__name__,
        "versions": versions(),
        "fingerprint": program.structure.fingerprint(),
        "summary": str(program.structure).splitlines(),
        "settings": {name: encoder.encode(getattr(estimator, name)) for name in estimator._settings},
        "state": {name: encoder.encode(getattr(estimator, name)) for name in estimator._state},
        "ledger": {name: getattr(estimator.ledger, name) for name in ("budget", "counts", "restored")},
        "program": {name: encoder.encode(getattr(program, name)) for name in _PROGRAM},
        "arguments": None if arguments is None else encoder.encode(arguments),
        "without_arguments": reason,
        "densities": None if arguments is None else encoder.encode(probe_densities(program)),
    }
    write_archive(path, _KIND, _VERSION, facts, encoder.arrays)


def load(path: str | os.PathLike[str], model: Callable[..., Any], *, progress: Progress | bool = True) -> Any:
    """Load an estimator that `save` wrote, ready to `sample`.

    Draws are bitwise equal to those of the estimator that was saved, on the same device with the same versions.

    Args:
        path: The file.
        model: The NumPyro model that the estimator was trained for.
        progress: Whether to show progress bars, or a callback that does.

    Returns:
        The `LF`, `Direct` or `PF` that was saved, without its simulations and draws.

    Raises:
        ValueError: If the file is damaged, foreign or newer, or if the model is another one, with all that differs.
        FileNotFoundError: If there is no such file.
    """
    facts, arrays = read_archive(path, _KIND, _VERSION)
    try:
        estimator, program, densities = _rebuild(facts, arrays, model, progress)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{path} cannot be rebuilt: {error}. It was saved with {facts.get('versions')}, this is {versions()}."
        ) from error
    if facts["arguments"] is not None:
        _check_model(path, model, program, estimator.observed, densities)
        _check_networks(path, estimator, program)
    return estimator


def _rebuild(
    facts: dict[str, Any], arrays: dict[str, np.ndarray], model: Callable[..., Any], progress: Progress | bool
) -> tuple[Inference, Program, dict[str, float] | None]:
    decoder = Decoder(_CLASSES, arrays)
    kind: Any = _ESTIMATORS[facts["class"]]
    for part, expected in (("settings", kind._settings), ("state", kind._state), ("program", _PROGRAM)):
        differ = sorted(set(facts[part]) ^ set(expected))
        if differ:
            raise ValueError(f"its {part} are other ones than in this version of hsbi ({', '.join(differ)})")
    own = {name: decoder.decode(facts["program"][name]) for name in _PROGRAM}
    if own["structure"].fingerprint() != facts["fingerprint"]:
        raise ValueError("its structure does not have the fingerprint that was saved")
    program = Program(model=model, arguments=decoder.decode(facts["arguments"]) or {}, **own)
    settings = {name: decoder.decode(facts["settings"][name]) for name in kind._settings}
    estimator: Inference = kind(model, progress=progress, **settings)
    for name in kind._state:
        setattr(estimator, name, decoder.decode(facts["state"][name]))
    estimator.ledger = Ledger(facts["ledger"]["budget"])
    for phase, count in facts["ledger"]["counts"].items():
        estimator.ledger.add(phase, count)
    for phase, count in facts["ledger"]["restored"].items():
        estimator.ledger.restore(phase, count)
    estimator._program = program
    return estimator, program, decoder.decode(facts["densities"])


def _check_model(
    path: str | os.PathLike[str],
    model: Callable[..., Any],
    program: Program,
    observed: tuple[str, ...],
    densities: dict[str, float] | None,
) -> None:
    """Read the model with the arguments of training, and refuse it if anything differs."""
    try:
        args, kwargs = unbind_arguments(model, program.arguments)
        with warnings.catch_warnings():
            # The notes were given when the estimator was trained, and are given again by `sample`.
            warnings.simplefilter("ignore")
            structure = inspect(model, *args, observed=observed, **kwargs)
    except Exception as error:
        # The model is the user's code, and may raise anything with arguments that are not its own.
        raise ValueError(
            f"{path} was trained for another model: this one cannot be read with the arguments of training "
            f"({', '.join(program.arguments) or 'none'}): {type(error).__name__}: {error}"
        ) from error
    found = list_differences(structure_facts(program.structure), structure_facts(structure))
    if not found and densities is not None:
        found = list_other_densities(densities, probe_densities(program))
    if found:
        raise ValueError(f"{path} was trained for another model: {'; '.join(found)}. Pass the model it was saved with.")


def _check_networks(path: str | os.PathLike[str], estimator: Inference, program: Program) -> None:
    """Trace a draw without computing it: every array must have the shape that the networks expect."""
    posterior = estimator._trained()
    data = {name: jnp.zeros(program.structure[name].shape) for name in program.structure.observations}
    design = read_design(program)

    def draw() -> Any:
        observed = posterior.view.observe(data, design)
        return posterior.sample(program, observed, jax.random.key(0), 2)

    try:
        jax.eval_shape(draw)
    except Exception as error:
        raise ValueError(
            f"{path} does not fit the networks of this version of hsbi: {str(error).splitlines()[0]}"
        ) from error
