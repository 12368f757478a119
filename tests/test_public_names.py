import pytest

import hsbi


@pytest.mark.parametrize("name", hsbi.__all__)
def test_public_name_resolves(name):
    value = getattr(hsbi, name)
    assert getattr(value, "__name__", name) == name


def test_dir_lists_the_public_names():
    assert dir(hsbi) == sorted(hsbi.__all__)


def test_unknown_name_lists_the_public_ones():
    with pytest.raises(AttributeError, match="no attribute 'simulator'; public names are LF, PF, Direct"):
        hsbi.simulator  # noqa: B018
