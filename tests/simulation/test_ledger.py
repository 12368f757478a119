"""The ledger counts exactly and holds to its budget."""

import numpy as np
import pytest

from hsbi.simulation.ledger import Ledger


def test_counts_add_up_by_phase():
    ledger = Ledger()
    ledger.add("simulate", 40)
    ledger.add("predict", np.int64(7))
    ledger.add("simulate", 2)
    assert ledger.counts == {"simulate": 42, "predict": 7}
    assert (ledger["simulate"], ledger["never"], ledger.total) == (42, 0, 49)


def test_counts_are_a_copy():
    ledger = Ledger()
    ledger.counts["simulate"] = 5
    assert ledger.total == 0


def test_budget_over_all_phases():
    ledger = Ledger(budget=10)
    ledger.add("simulate", 6)
    assert ledger.remaining("check") == 4
    with pytest.raises(ValueError, match="Phase 'check' asks for 5 simulator calls, but only 4 are left"):
        ledger.add("check", 5)
    assert ledger.counts == {"simulate": 6}
    ledger.add("check", 4)
    assert ledger.total == 10


def test_budget_per_phase():
    ledger = Ledger(budget={"simulate": 3})
    ledger.add("predict", 1_000)
    assert ledger.remaining("predict") is None
    with pytest.raises(ValueError, match="Phase 'simulate' asks for 4 simulator calls, but only 3 are left"):
        ledger.add("simulate", 4)


@pytest.mark.parametrize("count", [-1, 2.0, True, "3"])
def test_counts_are_whole_numbers(count):
    with pytest.raises(ValueError, match=r"Phase 'simulate' reported .* expected a whole number"):
        Ledger().add("simulate", count)


@pytest.mark.parametrize("budget", [-1, 2.5, {"simulate": -3}])
def test_budgets_are_whole_numbers(budget):
    with pytest.raises(ValueError, match=r"budget.* expected a whole number of simulator calls"):
        Ledger(budget=budget)


def test_prints_a_table():
    ledger = Ledger(budget={"simulate": 5_000})
    ledger.add("simulate", 1_250)
    ledger.add("check", 3)
    assert str(ledger) == "simulator calls\n  simulate  1,250 of 5,000\n  check         3\n  total     1,253"
    assert repr(ledger) == "Ledger(simulate=1250, check=3, budget={'simulate': 5000})"
    assert repr(Ledger()) == "Ledger()"
    assert str(Ledger(budget=9)).endswith("total  0 of 9")
