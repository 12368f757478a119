"""A store shows what is in it."""

import jax
import numpy as np
import pytest

import hsbi
from hsbi.model.simulate import simulate_sites
from hsbi.simulation.shelf import Shelf
from tests.simulation.conftest import KEY, NUM
from tests.simulation.programs import X
from tests.simulation.test_execution import equal


@pytest.fixture
def store(program, switch, above, tmp_path):
    switch.set("raising", above=above(10))
    with pytest.warns(UserWarning, match="10 of 200 failed"):
        simulate_sites(program, KEY, NUM, shelf=Shelf(tmp_path, program, KEY))
    return hsbi.Store(tmp_path)


def test_counts_ranges_and_times(store, reference, above):
    assert len(store) == NUM
    assert store.counts() == {"y": {"ok": 190, "error": 10}}
    eta = np.asarray(reference.values["eta"])
    assert store.ranges()["eta"] == (eta.min(), eta.max())
    # The first output is eta itself, where the simulator did not fail.
    assert store.ranges()["y"][1] >= eta[eta < above(10)].max()
    assert store.seconds_per_simulation > 0
    text = str(store)
    assert "200 rows of single sites" in text
    assert "status of y  190 ok, 10 error" in text
    assert f"range of eta  {eta.min():.4g} to {eta.max():.4g}" in text
    assert f"time per simulation  {store.seconds_per_simulation:.3g} s" in text
    assert jax.random.key_data(store.key).tolist() == jax.random.key_data(KEY).tolist()


@pytest.mark.fault(1)
def test_failures_have_parameters_type_and_message(store, reference, above):
    failures = store.failures()
    eta = np.asarray(reference.values["eta"])
    numbers = np.flatnonzero(eta > above(10))
    assert [failure["number"] for failure in failures] == numbers.tolist()
    for failure, number in zip(failures, numbers, strict=True):
        assert (failure["status"], failure["type"], failure["message"]) == ("error", "Rejected", "eta is too large")
        assert failure["parameters"]["eta"] == eta[number]
        assert failure["site"] == reference.index[number]
        assert "raise Rejected" in failure["traceback"]


def test_failures_can_be_simulated_again(store, program, switch, reference):
    assert store.forget_failures() == 10
    assert len(store) == 190
    switch.set("well")
    equal(simulate_sites(program, KEY, NUM, shelf=Shelf(store.path, program, KEY)), reference)


def test_export_to_xarray(store, reference):
    data = store.to_xarray()
    assert data.sizes["simulation"] == NUM
    np.testing.assert_array_equal(data["eta"], reference.values["eta"])
    np.testing.assert_array_equal(data["site"], reference.index)
    np.testing.assert_allclose(data["covariate_x"], X[np.asarray(reference.index)])
    assert data["y"].dims == ("simulation", "y_dim_0")
    usable = (data["status_y"] == "ok").values
    assert usable.sum() == 190
    np.testing.assert_array_equal(data["y"][usable], np.asarray(reference.observations["y"])[usable])


def test_a_folder_without_a_store_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no store of simulations in"):
        hsbi.Store(tmp_path)
