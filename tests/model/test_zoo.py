"""Inspect every model of the zoo and compare with the structure written down by hand."""

import functools
import re
import warnings

import jax
import numpy as np
import numpyro
import pytest

import hsbi
from hsbi.model.coordinates import constrain, unconstrain
from hsbi.model.draws import draw_latents
from hsbi.model.routes import bind
from hsbi.model.simulate import simulate_sites
from hsbi.model.trace import canonicalize, restore
from hsbi.simulation.ledger import Ledger

from .zoo import ACCEPTED, CASES, REFUSED

# A round trip in single precision through log, logit or stick breaking keeps about four digits at the ends.
ROUND_TRIP = 1e-4
SYNONYMS = {
    "unit_interval": "interval(0, 1)",
    "greater_than(0)": "positive",
    "integer_greater_than(0)": "nonnegative_integer",
    "greater_than_eq(0)": "nonnegative",
    "real_vector": "real",
}

BY_NAME = {case.name: case for case in CASES}
accepted = pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case.name)
refused = pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)


@functools.cache
def inspect_case(name):
    """Inspect a model; any warning that is not expected is an error."""
    case = BY_NAME[name]
    with warnings.catch_warnings():
        if case.expected.warns is not None:
            warnings.filterwarnings("ignore", message=f"(?s).*{case.expected.warns}")
        return hsbi.inspect(case.model, *case.args, observed=case.observed, **case.kwargs)


@functools.cache
def bind_case(name):
    case = BY_NAME[name]
    with warnings.catch_warnings():
        if case.expected.warns is not None:
            warnings.filterwarnings("ignore", message=f"(?s).*{case.expected.warns}")
        return bind(case.model, case.args, dict(case.kwargs), observed=case.observed)


def words(support):
    """Split a support in words into its name and its numbers."""
    support = SYNONYMS.get(support, support)
    name, _, bounds = support.partition("(")
    return name, tuple(float(number) for number in re.findall(r"-?\d+\.?\d*(?:e[-+]?\d+)?", bounds))


def same_support(expected, got):
    if expected.endswith("(...)"):
        return got.partition("(")[0] == expected.partition("(")[0]
    (name, bounds), (got_name, got_bounds) = words(expected), words(got)
    return name == got_name and len(bounds) == len(got_bounds) and np.allclose(bounds, got_bounds, rtol=1e-3)


def differences(expected, site):
    """List what differs between a site and what was written down for it."""
    pairs = {
        "level": (expected.level, site.level),
        "plates": (expected.plates, site.plates),
        "shape": (expected.shape, site.shape),
        "event_shape": (expected.event, site.event_shape),
        "program_shape": (expected.program_shape, site.program_shape),
        "plate_axes": (expected.plate_axes, site.plate_axes),
        "parents": (tuple(sorted(expected.parents)), tuple(sorted(site.parents))),
        "discrete": (expected.discrete, site.discrete),
        "inputs": (expected.inputs, site.inputs),
        "missing": (expected.missing, site.missing),
    }
    if expected.distribution is not None:
        pairs["distribution"] = (expected.distribution, site.distribution)
    found = [f"{site.name}.{field}: expected {a!r}, got {b!r}" for field, (a, b) in pairs.items() if a != b]
    if not same_support(expected.support, site.support):
        found.append(f"{site.name}.support: expected {expected.support!r}, got {site.support!r}")
    return found


def test_names_are_unique_and_there_are_enough():
    assert len({case.name for case in CASES}) == len(CASES)
    assert len(ACCEPTED) >= 36
    assert len(REFUSED) >= 20


@accepted
def test_the_zoo_agrees_with_numpyro(case):
    values = trace_values(case.name)
    for site in case.expected.sites:
        assert np.shape(values[site.name]) == site.program_shape, site.name
        assert site.shape[len(site.plates) :] == site.event
        sizes = {plate.name: plate.size for plate in case.expected.plates}
        assert site.shape[: len(site.plates)] == tuple(sizes[name] for name in site.plates)


@accepted
def test_levels(case):
    structure = inspect_case(case.name)
    assert structure.globals == case.expected.level("global")
    assert structure.locals == case.expected.level("local")
    assert structure.observations == case.expected.level("observation")
    assert structure.deterministics == case.expected.level("deterministic")
    assert tuple(site.name for site in structure.sites) == tuple(site.name for site in case.expected.sites)


@accepted
def test_sites(case):
    structure = inspect_case(case.name)
    found = [line for site in case.expected.sites for line in differences(site, structure[site.name])]
    assert not found, "\n".join(found)


@accepted
def test_plates(case):
    structure = inspect_case(case.name)
    expected = {(plate.name, plate.size, plate.dim, plate.role) for plate in case.expected.plates}
    assert {(plate.name, plate.size, plate.dim, plate.role) for plate in structure.plates} == expected
    assert len(structure.plates) == len(expected)
    sites = [plate for plate in case.expected.plates if plate.role == "site"]
    assert (structure.site_plate and structure.site_plate.name) == (sites[0].name if sites else None)
    assert structure.num_sites == (sites[0].size if sites else 1)
    replicates = {plate.name for plate in case.expected.plates if plate.role == "replicate"}
    assert {plate.name for plate in structure.replicate_plates} == replicates


@accepted
def test_covariates(case):
    structure = inspect_case(case.name)
    expected = {(c.path, c.axis, c.shape, c.data) for c in case.expected.covariates}
    assert {(c.path, c.axis % len(c.shape), c.shape, c.data) for c in structure.covariates} == expected
    assert len(structure.covariates) == len(expected)


@pytest.mark.parametrize("case", [case for case in ACCEPTED if case.expected.warns], ids=lambda case: case.name)
def test_warnings_are_given_and_noted(case):
    with pytest.warns(UserWarning, match=case.expected.warns):
        structure = hsbi.inspect(case.model, *case.args, observed=case.observed, **case.kwargs)
    assert any(re.search(case.expected.warns, note) for note in structure.notes)


@refused
def test_refusals_name_the_site_and_the_reason(case):
    with pytest.raises((ValueError, TypeError, NotImplementedError), match=case.expected.says) as caught:
        hsbi.inspect(case.model, *case.args, observed=case.observed, **case.kwargs)
    message = str(caught.value)
    missing = [name for name in case.expected.names if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", message)]
    assert not missing, f"{missing} not in: {message}"


@functools.cache
def trace_values(name):
    """Run the program as NumPyro does, undoing nothing."""
    case = BY_NAME[name]
    seeded = numpyro.handlers.seed(case.model, rng_seed=7)
    with warnings.catch_warnings():
        # NumPyro warns where the data have NaN or lie outside the support; here only shapes and places matter.
        warnings.filterwarnings("ignore", category=UserWarning)
        trace = numpyro.handlers.trace(seeded).get_trace(*case.args, **case.kwargs)
    return {name: np.asarray(site["value"]) for name, site in trace.items() if "value" in site}


@accepted
def test_canonical_layout_round_trip(case):
    structure, values = inspect_case(case.name), trace_values(case.name)
    for facts in case.expected.sites:
        site, value = structure[facts.name], values[facts.name]
        canonical = canonicalize(site, value)
        front = np.moveaxis(value, facts.plate_axes, range(len(facts.plates)))
        np.testing.assert_array_equal(canonical, front.reshape(facts.shape))
        np.testing.assert_array_equal(restore(site, canonical), value)
        draws = np.stack([value, value + 1, value - 1])
        np.testing.assert_array_equal(restore(site, canonicalize(site, draws)), draws)


@accepted
def test_drawn_latents_have_canonical_shapes(case):
    program = bind_case(case.name)
    draws = draw_latents(program, jax.random.key(1), 5)
    latents = {site.name: site.shape for site in case.expected.sites if site.level in ("global", "local")}
    assert {name: np.shape(value) for name, value in draws.items()} == {n: (5, *shape) for n, shape in latents.items()}
    for name, value in draws.items():
        assert np.unique(np.asarray(value), axis=0).shape[0] == 5, f"{name} repeats draws"


@accepted
def test_unconstrained_round_trip(case):
    program = bind_case(case.name)
    values = draw_latents(program, jax.random.key(2), 5)
    again = constrain(program, unconstrain(program, values))
    assert set(again) == set(values)
    for name, value in values.items():
        scale = max(1.0, float(np.abs(np.asarray(value)).max())) if np.asarray(value).size else 1.0
        np.testing.assert_allclose(again[name], value, rtol=ROUND_TRIP, atol=ROUND_TRIP * min(scale, 1.0), err_msg=name)


@accepted
def test_ledger_counts_the_simulations(case):
    program, ledger = bind_case(case.name), Ledger()
    before = 0 if case.counter is None else case.counter.count
    with warnings.catch_warnings():
        # Simulating the whole program to keep one site is announced; that is tested elsewhere.
        warnings.filterwarnings("ignore", category=UserWarning)
        jax.block_until_ready(jax.tree.leaves(simulate_sites(program, jax.random.key(3), 6, ledger=ledger)))
    if case.counter is not None:
        assert ledger.total == case.counter.count - before
    assert ledger.total in (6, 6 * program.structure.num_sites)
    assert ledger["simulate"] == ledger.total
