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

NUM_SIMULATIONS = 7
# Compiling a program costs seconds, so the quick suite runs one of each kind; the slow one runs them all.
QUICK = frozenset(
    {
        "eight_schools",
        "eight_schools_locscale",
        "ucb_admissions",
        "stochastic_volatility",
        "nested_without_dims",
        "obs_mask",
        "seasonal_seirs_unseen",
        "host_walk",
        "host_closed_over",
    }
)
BY_NAME = {case.name: case for case in CASES}
accepted = pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case.name)
runs = pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if case.name in QUICK else pytest.mark.slow, id=case.name) for case in ACCEPTED],
)
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
    """Bind a model; any warning that is not expected is an error."""
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
    shapes = {}

    def run():
        shapes.update({name: np.shape(value) for name, value in traced(case).items()})

    jax.eval_shape(run)
    sizes = {plate.name: plate.size for plate in case.expected.plates}
    for site in case.expected.sites:
        assert shapes[site.name] == site.program_shape, site.name
        assert site.shape == tuple(sizes[name] for name in site.plates) + site.event, site.name


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


@accepted
def test_canonical_layout(case):
    structure = inspect_case(case.name)
    for facts in case.expected.sites:
        size = int(np.prod(facts.program_shape))
        check_layout(structure[facts.name], facts, np.arange(size).reshape(facts.program_shape))


@runs
def test_canonical_layout_of_traced_values(case):
    structure, values = inspect_case(case.name), traced(case)
    for facts in case.expected.sites:
        check_layout(structure[facts.name], facts, np.asarray(values[facts.name]))


@runs
def test_drawn_latents_have_canonical_shapes(case):
    draws = draw_latents(bind_case(case.name), jax.random.key(1), 5)
    expected = {site.name: (5, *site.shape) for site in case.expected.sites if site.level in ("global", "local")}
    assert {name: np.shape(value) for name, value in draws.items()} == expected
    for name, value in draws.items():
        assert np.unique(np.asarray(value), axis=0).shape[0] == 5, f"{name} repeats draws"


@runs
def test_unconstrained_round_trip(case):
    program = bind_case(case.name)
    values = draw_latents(program, jax.random.key(2), 5)
    again = jax.vmap(lambda draw: constrain(program, unconstrain(program, draw)))(values)
    assert set(again) == set(values)
    for name, value in values.items():
        np.testing.assert_allclose(again[name], value, rtol=ROUND_TRIP, atol=ROUND_TRIP, err_msg=name)


@runs
def test_ledger_counts_the_simulations(case):
    program, ledger = bind_case(case.name), Ledger()
    before = 0 if case.counter is None else case.counter.count
    with warnings.catch_warnings():
        # Simulating the whole program is announced, and some prior draws overflow; neither is the matter here.
        warnings.filterwarnings("ignore", category=UserWarning)
        rows = simulate_sites(program, jax.random.key(3), NUM_SIMULATIONS, ledger=ledger)
        jax.block_until_ready(rows.observations)
    assert program.route == case.route
    if case.route == "whole":
        assert ledger.total == len(rows.index)
        assert ledger.total % program.num_sites == 0
    else:
        assert ledger.total == NUM_SIMULATIONS * case.calls
    assert ledger["simulate"] == ledger.total
    if case.counter is not None:
        assert case.counter.count - before == ledger.total
    for facts in case.expected.sites:
        if facts.level == "observation":
            tail = facts.shape[1:] if program.structure.site_plate else facts.shape
            assert rows.observations[facts.name].shape == (len(rows.index), *tail)


def traced(case):
    """Run the program as NumPyro does, undoing nothing, and give all values."""
    seeded = numpyro.handlers.seed(case.model, rng_seed=7)
    with warnings.catch_warnings():
        # NumPyro warns of NaN and of data outside the support; only shapes and places matter here.
        warnings.filterwarnings("ignore", category=UserWarning)
        trace = numpyro.handlers.trace(seeded).get_trace(*case.args, **case.kwargs)
    return {name: site["value"] for name, site in trace.items() if "value" in site}


def check_layout(site, facts, value):
    """Compare the canonical layout with NumPy's own move of axes, and go back, with and without draws."""
    canonical = canonicalize(site, value)
    front = np.moveaxis(value, facts.plate_axes, range(len(facts.plates)))
    np.testing.assert_array_equal(canonical, front.reshape(facts.shape))
    np.testing.assert_array_equal(restore(site, canonical), value)
    draws = np.stack([value, value + 1, value - 1])
    np.testing.assert_array_equal(restore(site, canonicalize(site, draws)), draws)
