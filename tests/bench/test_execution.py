import pytest

from hsbi.bench import execution


def test_throughput_is_relative_to_bare_loops(monkeypatch):
    loops = iter([execution.Cost(1e-4, 1e-4), execution.Cost(3e-4, 1e-4)] * 3)
    monkeypatch.setattr(execution, "_ROUNDS", 1)
    monkeypatch.setattr(execution, "calibrate", lambda seconds: 7)
    monkeypatch.setattr(execution, "measure_loops", lambda *args: next(loops))
    monkeypatch.setattr(execution, "measure_pool", lambda *args: execution.Cost(2e-4, 4e-4))
    # Loops take 2e-4 s on average; a pool of two that takes as long for each simulation uses two cores for it.
    assert execution.compare(1e-4, 1000, 0) == pytest.approx((1.0, 0.25))
    assert execution.compare(1e-4, 1000, 2) == pytest.approx((0.5, 0.25))


def test_a_bare_loop_is_timed_in_a_process_of_its_own():
    cost = execution.measure_loops(1000, 50, 1)
    assert 0 < cost.processor < 1.5 * cost.clock


def test_calibration_finds_the_work_of_a_given_time():
    # Four times the work for four times the time, within what a busy machine makes of it.
    ratio = execution.calibrate(4e-2) / execution.calibrate(1e-2)
    assert 1.5 < ratio < 10.0


def test_a_store_is_read_without_a_simulation(tmp_path):
    execution.fill(str(tmp_path / "store"), 300)
    # The ledger in there allows no call.
    assert execution.measure_store(str(tmp_path / "store"), 300)["seconds"] > 0


@pytest.mark.slow
def test_training_on_a_store_makes_no_simulation(tmp_path):
    execution.fill(str(tmp_path / "store"), 300)
    measured = execution.measure_training(str(tmp_path / "store"), 300, keep_freed=True)
    assert measured["calls"] == 0
    assert measured["size"] == 300 * 4 * (execution._WIDTH + 2)
    # With so few simulations the networks are most of it, and far more than a copy.
    assert measured["growth"] > measured["size"]


@pytest.mark.parametrize(("growth", "good"), [((38e6, 46e6), [True, True]), ((38e6, 78e6), [True, False])])
def test_a_copy_is_told_from_what_does_not_grow(monkeypatch, growth, good):
    found = {100: (40e6, growth[0]), 200: (80e6, growth[1])}

    def run_apart(option, folder, number):
        size, more = found[number]
        opened = {"seconds": 1.0, "copies": 1.2}
        return opened if option == "--open" else {"calls": 0, "size": size, "growth": more}

    monkeypatch.setattr(execution, "fill", lambda *args: None)
    monkeypatch.setattr(execution, "_run_apart", run_apart)
    results = execution._measure_stored(100)
    assert [value for _, value, *_ in results] == pytest.approx([1.0, 1.2, 0.95, (growth[1] - 38e6) / 40e6])
    assert [one[-1] for one in results[2:]] == good
