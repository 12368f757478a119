import pytest

from hsbi.bench import execution


def test_throughput_is_relative_to_bare_loops(monkeypatch):
    monkeypatch.setattr(execution, "calibrate", lambda seconds: 7)
    monkeypatch.setattr(execution, "measure_loops", lambda iterations, number, processes: 1e-4)
    monkeypatch.setattr(execution, "measure_pool", lambda iterations, number, workers: (number * 2e-4, number * 1e-4))
    assert execution.compare(1e-4, 1000, 2) == pytest.approx((0.5, 0.5))
    assert execution.compare(1e-4, 1000, 0) == pytest.approx((0.5, 1.0))


def test_calibration_finds_the_work_of_a_given_time():
    # Four times the work for four times the time, within what a busy machine makes of it.
    ratio = execution.calibrate(4e-2) / execution.calibrate(1e-2)
    assert 1.5 < ratio < 10.0


def test_a_store_is_read_without_a_simulation(tmp_path):
    execution.fill(str(tmp_path / "store"), 300)
    # The ledger in there allows no call.
    assert execution.measure_store(str(tmp_path / "store"), 300)["seconds"] > 0
