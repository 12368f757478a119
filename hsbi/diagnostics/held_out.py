"""Real simulations of single sites beside draws of the surrogates at the same parameters."""

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hsbi.diagnostics.simulated import column_names
from hsbi.diagnostics.surrogate_check import SurrogateCheck, check_surrogate, near_rows
from hsbi.inference.arrays import read_design
from hsbi.inference.batch import site_parameters, standardize
from hsbi.inference.features import flatten_parameters
from hsbi.inference.surrogate import Surrogate
from hsbi.model.data import site_covariates
from hsbi.model.program import Program
from hsbi.model.simulate import Simulations
from hsbi.model.transforms import compress_tails
from hsbi.training import jit

_MAX_ROWS, _MAX_NUMBERS = 2000, 2 * 10**7
_MIN_DRAWS, _MAX_DRAWS = 19, 99
# Posterior draws that say where the observed data are.
_NUM_NEAR = 50
# Rows below which a comparison is not worth making.
MIN_ROWS = 40


def as_rows(program: Program, values: Mapping[str, Array], observations: Mapping[str, Array]) -> Simulations:
    """Make every site of whole data sets a row."""
    structure = program.structure
    num_sets, num_sites = len(next(iter(observations.values()))), program.num_sites
    has_plate = structure.site_plate is not None

    def split(name: str, value: Array) -> Array:
        if has_plate and structure.site_plate is not None and structure.site_plate.name in structure[name].plates:
            return value.reshape(num_sets * num_sites, *value.shape[2:])
        return jnp.repeat(value, num_sites, axis=0)

    return Simulations(
        jnp.tile(jnp.arange(num_sites), num_sets),
        {name: split(name, jnp.asarray(value)) for name, value in values.items()},
        {name: split(name, jnp.asarray(value)) for name, value in observations.items()},
        {},
    )


def join_rows(parts: list[Simulations]) -> Simulations | None:
    """Put rows from several sources one after the other."""
    if not parts:
        return None
    plain = [part._replace(status={}) for part in parts]
    return jax.tree.map(lambda *arrays: jnp.concatenate(arrays), *plain)


def compare_surrogate(
    key: Array,
    program: Program,
    surrogate: Surrogate,
    rows: Simulations,
    near: tuple[Program, Mapping[str, Array]] | None = None,
) -> SurrogateCheck | None:
    """Check one surrogate; None if too few simulations are usable.

    Args:
        key: A random key.
        program: The program that it was trained for.
        surrogate: The surrogate.
        rows: Simulations that it was not trained on.
        near: The program of the observed data and posterior draws of all latents, to say where the data are.
    """
    draw_key, rank_key = jax.random.split(key)
    shape, design = surrogate.shape, read_design(program)
    parameters = flatten_parameters(surrogate.features.names, rows.values, design.covariates[rows.index])
    lead = (-1, shape.replicates, shape.points, shape.width)
    real = compress_tails(standardize(surrogate.transform, rows.observations[shape.name].reshape(lead)))
    usable = np.isfinite(real).all((1, 2, 3)) & np.isfinite(parameters).all(1)
    chosen = np.flatnonzero(usable)[:_MAX_ROWS]
    if chosen.size < MIN_ROWS:
        return None
    parameters, real, index = parameters[chosen], real[chosen], rows.index[chosen]
    inputs = design.inputs.get(shape.name)
    features = surrogate.prepare(parameters, None if inputs is None else inputs[index])
    num_draws = int(np.clip(_MAX_NUMBERS // real.size, _MIN_DRAWS, _MAX_DRAWS))
    draws = np.asarray(_draw(surrogate, draw_key, features, num_draws), float)
    names = (*column_names(program.structure, surrogate.features.names), *site_covariates(program)[1])
    varying = np.ptp(parameters, axis=0) > 0
    close = None
    if near is not None and varying.any():
        at = _observed_parameters(surrogate, *near)
        close = near_rows(np.asarray(parameters, float)[:, varying], at[:, varying])
    return check_surrogate(
        rank_key,
        np.asarray(real, float).reshape(chosen.size, -1),
        draws.reshape(chosen.size, num_draws, -1),
        np.asarray(parameters, float)[:, varying],
        name=shape.name,
        columns=[name for name, varies in zip(names, varying, strict=True) if varies],
        near=close,
    )


@functools.partial(jit, static_argnames="num_draws")
def _draw(surrogate: Surrogate, key: Array, features: Array, num_draws: int) -> Array:
    """Draw observations as the data are seen, `[rows, draws, replicates, points, width]`."""

    def one(own: Array) -> Array:
        drawn = surrogate.transform.decode(surrogate.sample(own, features))
        return compress_tails(standardize(surrogate.transform, drawn))

    return jnp.moveaxis(jax.lax.map(one, jax.random.split(key, num_draws)), 0, 1)


def _observed_parameters(surrogate: Surrogate, program: Program, values: Mapping[str, Array]) -> np.ndarray:
    """Give the parameters of every site at some posterior draws, `[draws * sites, columns]`."""
    covariates = read_design(program).covariates
    num_draws = len(next(iter(values.values())))
    picks = np.unique(np.linspace(0, num_draws - 1, _NUM_NEAR).round().astype(int))
    names = surrogate.features.names
    found = [
        site_parameters(program, names, {name: values[name][pick] for name in names}, covariates) for pick in picks
    ]
    return np.asarray(jnp.concatenate(found), float)
