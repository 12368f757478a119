"""Layouts against what each program was written to have."""

import dataclasses
import json

import numpy as np
import pytest

from hsbi.model.program import with_num_sites
from hsbi.tokens import make_layout
from tests.tokens.structures import CASES, structure_of


@pytest.fixture(params=CASES)
def name(request):
    return request.param


def test_variables_are_those_of_the_program(name):
    case, layout = CASES[name], make_layout(structure_of(name))
    found = {v.name: (v.level, v.rows, v.size, v.inputs) for v in layout.variables}
    assert found == case.variables
    assert (layout.num_sites, layout.width) == (case.num_sites, case.width)


def test_variables_are_numbered_in_order_of_level(name):
    layout = make_layout(structure_of(name))
    assert [variable.id for variable in layout.variables] == list(range(len(layout.variables)))
    rank = {"global": 0, "local": 1, "observation": 2}
    levels = [rank[variable.level] for variable in layout.variables]
    assert levels == sorted(levels)


def test_layouts_of_equal_structures_are_equal_hashable_and_plain(name):
    structure = structure_of(name)
    first, second = make_layout(structure), make_layout(dataclasses.replace(structure, notes=("another note",)))
    assert first == second
    assert hash(first) == hash(second)
    json.dumps(dataclasses.asdict(first))


def test_layouts_of_other_programs_differ():
    assert len({make_layout(structure_of(name)) for name in CASES}) == len(CASES) - 1  # two cases share their layout
    assert make_layout(structure_of("own plane inputs")) == make_layout(structure_of("shared plane inputs"))


def test_a_layout_follows_the_number_of_sites(name):
    structure = structure_of(name)
    resized = make_layout(with_num_sites(structure, 11))
    assert resized == dataclasses.replace(make_layout(structure), num_sites=11)


def test_fields_of_two_observations_by_hand():
    """Order: mu; eta of sites 1 to 4; then x and y of site 1, of site 2, and so on."""
    ids, positions, groups = make_layout(structure_of("two observations")).fields()
    np.testing.assert_array_equal(ids, [0, 1, 1, 1, 1, 2, 3, 2, 3, 2, 3, 2, 3])
    np.testing.assert_array_equal(positions, np.zeros(13))
    np.testing.assert_array_equal(groups, [0, 1, 2, 3, 4, 1, 1, 2, 2, 3, 3, 4, 4])


def test_fields_of_long_events_by_hand():
    """18 globals make two tokens, 20 observed numbers two a site; positions count tokens within a variable."""
    layout = make_layout(structure_of("long events"))
    ids, positions, groups = layout.fields()
    np.testing.assert_array_equal(ids, [0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 2])
    np.testing.assert_array_equal(positions, [0, 1, 0, 0, 0, 0, 1, 0, 1, 0, 1])
    np.testing.assert_array_equal(groups, [0, 0, 1, 2, 3, 1, 1, 2, 2, 3, 3])
    assert (layout.num_parameters, layout.num_tokens, layout.num_positions) == (5, 11, 2)


def test_fields_of_replicates_by_hand():
    ids, positions, groups = make_layout(structure_of("replicates")).fields()
    np.testing.assert_array_equal(ids, [0, *[1] * 4, *[2] * 12])
    np.testing.assert_array_equal(positions, [0, *[0] * 4, *[0, 1, 2] * 4])
    np.testing.assert_array_equal(groups, [0, 1, 2, 3, 4, *np.repeat([1, 2, 3, 4], 3)])


def test_fields_agree_with_the_counts(name):
    layout = make_layout(structure_of(name))
    ids, positions, groups = layout.fields()
    assert len(ids) == len(positions) == len(groups) == layout.num_tokens
    assert np.all(np.isin(ids[: layout.num_parameters], [v.id for v in layout.variables if v.level != "observation"]))
    for variable in layout.variables:
        per_group = variable.num_tokens * (1 if variable.level == "global" else layout.num_sites)
        assert np.sum(ids == variable.id) == per_group
    assert positions.max() == layout.num_positions - 1
