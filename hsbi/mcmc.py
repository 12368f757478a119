"""Runs of NumPyro's MCMC in the layout of hsbi's own results."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpyro import handlers

from hsbi.model.structure import Site, Structure
from hsbi.model.trace import canonicalize, inspect, undo_reparam
from hsbi.results import Arrays, Coords, Dims, to_arviz

if TYPE_CHECKING:
    from numpyro.infer import MCMC

# What arviz calls the fields that NumPyro's samplers can record.
_STAT_NAMES = {
    "potential_energy": "lp",
    "adapt_state.step_size": "step_size",
    "num_steps": "n_steps",
    "accept_prob": "acceptance_rate",
}


def from_mcmc(
    mcmc: "MCMC",
    *,
    coords: Coords | None = None,
    dims: Dims | None = None,
    posterior_predictive: Arrays | None = None,
    constant_data: Arrays | None = None,
    prior: Arrays | None = None,
) -> Any:
    """Put the draws of a NumPyro MCMC run into the layout of hsbi's own results.

    Plates name the dims, singleton axes of outer plates are gone, deterministic sites are included and
    reparameterized sites appear as they were written. No log-likelihood is computed. Models that hsbi cannot do
    inference for, such as those with `factor`, are accepted.

    Args:
        mcmc: A run sampler with a model.
        coords: Labels by dim.
        dims: Names by variable for its axes after `chain` and `draw`.
        posterior_predictive: What `numpyro.infer.Predictive` gives for the draws, [num_draws, *shape] over all chains.
        constant_data: Other data by name.
        prior: What `numpyro.infer.Predictive` gives without draws, [num_draws, *shape].

    Returns:
        An `arviz.InferenceData` on arviz 0.x, an `xarray.DataTree` on arviz 1.x.

    Raises:
        ValueError: If the sampler has not run or has no model.
    """
    model = getattr(mcmc.sampler, "model", None)
    if model is None:
        raise ValueError(
            "This MCMC has no model, only a potential function, so its draws have no site names. "
            "Build its kernel from a model, as in MCMC(NUTS(model), ...)."
        )
    if mcmc.last_state is None:
        raise ValueError("This MCMC has no draws yet. Call mcmc.run(...) first.")
    structure, data = _read_model(model, mcmc._args, mcmc._kwargs)
    draws = _canonical(structure, mcmc.get_samples(group_by_chain=True))
    predictive = _canonical(structure, posterior_predictive, keep=structure.observations)
    num_chains = mcmc.num_chains
    return to_arviz(
        structure,
        posterior=draws,
        sample_stats=_sampler_stats(mcmc.get_extra_fields(group_by_chain=True)),
        posterior_predictive={
            name: value.reshape(num_chains, -1, *value.shape[1:]) for name, value in predictive.items()
        },
        observed_data=data,
        constant_data=constant_data,
        prior={name: value[None] for name, value in _canonical(structure, prior).items()},
        coords=coords,
        dims=dims,
        library="numpyro",
    )


def _canonical(structure: Structure, arrays: Arrays | None, keep: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Bring draws in program layout to the canonical one, in program order, without names that are no sites."""
    arrays = {} if arrays is None else {name: np.asarray(value) for name, value in arrays.items()}
    names = [site.name for site in structure.sites if site.name in arrays and (keep is None or site.name in keep)]
    return {name: np.asarray(canonicalize(structure[name], arrays[name])) for name in names}


def _sampler_stats(fields: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Name what the sampler recorded as arviz does, and leave out states that are no arrays."""
    stats = {}
    for field, value in fields.items():
        if isinstance(value, Mapping | tuple):
            continue
        value = np.asarray(value)
        stats[_STAT_NAMES.get(field, field)] = -value if field == "potential_energy" else value
        if field == "num_steps":
            stats["tree_depth"] = np.floor(np.log2(value)).astype(int) + 1
    return stats


def _read_model(
    model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Structure, dict[str, np.ndarray]]:
    """Find a model's structure and its data in canonical layout."""
    with handlers.trace() as trace, handlers.seed(rng_seed=0):
        undo_reparam(model)(*args, **kwargs)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            structure = inspect(model, *args, **kwargs)
    except ValueError:
        # What cannot be inferred by simulation can still be drawn from by MCMC; plates are all that is needed here.
        structure = Structure(sites=tuple(_plain_site(m) for m in trace.values() if _is_site(m)))
    data = {
        name: np.asarray(
            canonicalize(structure[name], np.broadcast_to(trace[name]["value"], structure[name].program_shape))
        )
        for name in structure.observations
        if trace[name]["is_observed"]
    }
    return structure, data


def _is_site(message: Mapping[str, Any]) -> bool:
    return message["type"] == "deterministic" or (message["type"] == "sample" and np.size(message["value"]) > 0)


def _plain_site(message: Mapping[str, Any]) -> Site:
    """Describe the layout of a traced statement from its plates alone."""
    shape = tuple(np.shape(message["value"]))
    frames = sorted(message["cond_indep_stack"], key=lambda frame: frame.dim)
    event_dim = message["fn"].event_dim if message["type"] == "sample" else 0
    axes = tuple(frame.dim - event_dim for frame in frames)
    if any(-axis > len(shape) for axis in axes):
        frames, axes = [], ()
    taken = {len(shape) + axis for axis in axes}
    batch = len(shape) - event_dim
    rest = [n for axis, n in enumerate(shape) if axis not in taken and not (axes and axis < batch and n == 1)]
    level = (
        "deterministic" if message["type"] == "deterministic" else "observation" if message["is_observed"] else "global"
    )
    return Site(
        name=message["name"],
        level=level,
        plates=tuple(frame.name for frame in frames),
        shape=(*(shape[axis] for axis in axes), *rest),
        event_shape=tuple(rest),
        program_shape=shape,
        plate_axes=axes,
    )
