"""Tables and figures from rows whose numbers are known."""

import numpy as np
import pytest

from hsbi.bench.plot import choose_fixed, collect, plot_rows
from hsbi.bench.rows import Cell, group_rows, read_rows, write_row
from hsbi.bench.table import LABELS, calibration_p, make_table

TASKS = ("gaussian_mixture", "two_moons")


def make_row(folder, cell, number, value, *, rank=0.5):
    metrics = {name: value for name in LABELS if "lc2st" not in name} | {"all_mmd_p": 0.01 if number else 0.5}
    ranks = {f"{level}_ranks": [rank] * size for level, size in (("global", 2), ("local", cell.sites))}
    facts = {
        "metrics": metrics,
        "calibration": {**ranks, "global_coverage": 1.0, "local_coverage": 0.9},
        "costs": {
            "simulator_calls": cell.budget,
            "train_seconds": 200.0,
            "draw_seconds": 2.0,
            "peak_gigabytes": 1.5,
        },
    }
    write_row(folder, cell, number, facts)


@pytest.fixture
def rows(tmp_path):
    for task in TASKS:
        for budget in (1_000, 5_000):
            cell = Cell(task=task, method="lf", sites=50, budget=budget)
            for number in range(2):
                make_row(tmp_path, cell, number, 100 / budget + 0.002 * number)
        for method, scale in (("tfmpe", "small"), ("lf", "full"), ("reference", "full")):
            make_row(tmp_path, Cell(task=task, method=method, scale=scale, sites=20, budget=5_000), 0, 0.3)
    return read_rows(tmp_path)


def test_table_has_means_over_observations_and_their_number(rows):
    lines = [[part.strip() for part in line.split("|")[1:-1]] for line in make_table(rows).splitlines()]
    assert len({len(line) for line in lines}) == 1
    table = [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]
    assert len(table) == 10
    (row,) = [row for row in table if (row["task"], row["sites"], row["budget"]) == (TASKS[0], "50", "1,000")]
    # The mean of 0.100 and 0.102; one of two observations has p below 0.05.
    assert (row["method"], row["obs."], row["global mean"], row["MMD² all p < 0.05"]) == ("lf", "2", "0.101", "0.50")
    assert (row["90 % global"], row["calls"], row["train s"], row["GB"]) == ("1.00", "1,000", "200", "1.5")
    assert row["rank p global"] == ""
    assert {row["method"] for row in table} == {"lf", "tfmpe (small)", "reference"}


def test_calibration_needs_five_observations_and_finds_ranks_at_one_end(tmp_path):
    cell = Cell(task=TASKS[0], method="lf", sites=3, budget=10)
    for number in range(8):
        make_row(tmp_path, cell, number, 0.1, rank=0.01)
    rows = read_rows(tmp_path)
    assert np.isnan(calibration_p(rows[:4], "global"))
    for level in ("global", "local"):
        assert calibration_p(rows, level) < 1e-3


def test_lines_of_the_figure_are_means_with_standard_errors(rows):
    groups = group_rows(rows)
    assert choose_fixed(groups, "budget") == 50
    assert choose_fixed(groups, "sites") == 5_000
    places, means, errors = collect(groups, TASKS[1], "lf", "budget", "local_c2st")
    np.testing.assert_array_equal(places, [1_000, 5_000])
    np.testing.assert_allclose(means, [0.101, 0.021])
    np.testing.assert_allclose(errors, 0.001)
    places, means, _ = collect(groups, TASKS[1], "lf", "sites", "local_c2st")
    np.testing.assert_array_equal(places, [20, 50])
    np.testing.assert_allclose(means, [0.3, 0.021])
    places, _, _ = collect(groups, TASKS[1], "tfmpe (small)", "budget", "local_c2st")
    assert not len(places)


def test_figures_are_drawn(rows, tmp_path):
    paths = plot_rows(rows, tmp_path / "figures", metrics=("global_mean_error", "local_c2st"))
    assert [path.name for path in paths] == ["budget.png", "sites.png"]
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in paths)
