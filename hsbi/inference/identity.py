"""What tells one trained model from another: its structure, its arguments and its settings."""

import dataclasses
import importlib.metadata
import warnings
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import hsbi
from hsbi.inference.codec import Encoder
from hsbi.model.arguments import unbind_arguments
from hsbi.model.execution import Visit, execute, stand_in
from hsbi.model.program import Program, map_leaves
from hsbi.model.structure import Structure
from hsbi.model.trace import inspect
from hsbi.training.checkpoint import describe_key, digest_arrays
from hsbi.training.facts import Facts, flatten_config

if TYPE_CHECKING:
    from hsbi.inference.base import Inference


def structure_facts(structure: Structure) -> Facts:
    """Give the facts that make the fingerprint of a structure, by site, plate and argument."""
    sites = {f"site {site.name!r}": {k: v for k, v in vars(site).items() if k != "missing"} for site in structure.sites}
    plates = {f"plate {plate.name!r}": dict(vars(plate)) for plate in structure.plates}
    arguments = {f"argument {covariate.path!r}": dict(vars(covariate)) for covariate in structure.covariates}
    order = {"the model": {"order of sites": tuple(site.name for site in structure.sites)}}
    return {**sites, **plates, **arguments, **order}


def training_facts(estimator: "Inference", key: Array) -> Facts:
    """Give what a training run depends on: key, model, settings, arguments, simulations and versions."""
    program = estimator._program
    assert program is not None
    data = {covariate.path for covariate in program.structure.covariates if covariate.data is not None}
    values: dict[str, Any] = {}

    def read(path: str, leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray | np.generic | Array):
            values[path] = "its data" if path in data else f"array {digest_arrays(leaf)}"
        else:
            values[path] = leaf if isinstance(leaf, bool | int | float | str) else type(leaf).__qualname__
        return leaf

    map_leaves(read, program.arguments)
    settings = {name: getattr(estimator, name) for name in estimator._settings if name != "num_samples"}
    configs = {name: value for name, value in settings.items() if dataclasses.is_dataclass(value)}
    plain = {name: value for name, value in settings.items() if name not in configs}
    return {
        "the random key": {"value": describe_key(key)},
        **structure_facts(program.structure),
        **{name: flatten_config(config) for name, config in configs.items()},
        "the estimator": {"kind": type(estimator).__name__, **plain},
        "the values of arguments": values,
        "the simulations": {"digest": digest_arrays(getattr(estimator, "simulations", None))},
        "the versions": versions(),
    }


def versions() -> dict[str, str]:
    """Give the versions of what computes."""
    return {"hsbi": hsbi.__version__, **{name: importlib.metadata.version(name) for name in ("jax", "numpyro")}}


def describe_arguments(estimator: "Inference") -> tuple[dict[str, Any] | None, str]:
    """Give the arguments of training with the data in them replaced, or None and the reason why they cannot be kept."""
    program = estimator._program
    assert program is not None
    arguments = _without_data(program, estimator)
    try:
        # Encoded for the error only: custom objects among the arguments have no place in a file.
        Encoder({}).encode(arguments)
    except TypeError as error:
        return None, f"among the arguments, {error}"
    args, kwargs = unbind_arguments(program.model, arguments)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            structure = inspect(program.model, *args, observed=estimator.observed, **kwargs)
    except Exception as error:
        # The model is the user's code, and may do anything with data that are not its own.
        return None, f"without its data the model raised {type(error).__name__}: {error}"
    if structure.fingerprint() != program.structure.fingerprint():
        return None, "without its data the model has another structure"
    return arguments, ""


def _without_data(program: Program, estimator: "Inference") -> dict[str, Any]:
    """Replace every array argument that is the data of an observation by the lowest value simulated."""
    data: dict[str, np.ndarray] = {}

    def read(visit: Visit) -> Array:
        if visit.data is not None:
            data[visit.site.name] = np.asarray(visit.data)
        return stand_in(visit)

    execute(program, jax.random.key(0), observe=read)

    def replace(path: str, leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray | Array):
            return leaf
        for name, values in data.items():
            same_type = np.asarray(leaf).astype(values.dtype)
            if same_type.shape == values.shape and np.array_equal(
                same_type, values, equal_nan=values.dtype.kind == "f"
            ):
                low = estimator._ranges[name][0] if name in estimator._ranges else 0
                constant = np.full(np.shape(leaf), low).astype(leaf.dtype)
                return jnp.asarray(constant) if isinstance(leaf, Array) else constant
        return leaf

    return map_leaves(replace, program.arguments)
