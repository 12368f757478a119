"""The runner: rows are whole, are never made twice, and a run goes on where it ended."""

import dataclasses
import json
import sys
import types

import jax
import numpy as np
import pytest

from hsbi.bench import __main__, runner, sweep
from hsbi.bench.methods import METHODS, Trained, effective_scale
from hsbi.bench.rows import Cell, group_rows, missing_observations, read_rows, row_path, write_row
from hsbi.bench.tasks import TASKS

CELL = Cell(task="gaussian_linear", method="reference", sites=3, budget=100)
SETTINGS = {"num_observations": 3, "num_draws": 20}


@pytest.fixture
def fake(monkeypatch):
    """Count trainings of a method that draws from the exact posterior, and leave the costly metrics out."""
    counts = types.SimpleNamespace(trainings=0, draws=0, fail_at=None, spoil=0)

    def train(key, method, task, *, num_sites, budget, scale):
        counts.trainings += 1

        def sample(key, y, num_draws):
            counts.draws += 1
            if counts.draws == counts.fail_at:
                raise KeyboardInterrupt
            draws = task.reference(key, y, num_draws)
            draws["sigma"][: counts.spoil] = np.nan
            return draws

        return Trained(sample=sample, simulator_calls=budget, seconds=1.5, settings={"class": "Fake"})

    monkeypatch.setattr(runner, "train", train)
    monkeypatch.setattr(runner, "compare", lambda key, task, draws, exact: {"num": float(len(draws["sigma"]))})
    return counts


def test_a_finished_row_is_never_repeated(tmp_path, fake):
    paths = runner.run(tmp_path, CELL, **SETTINGS)
    assert paths == [row_path(tmp_path, CELL, number) for number in range(3)]
    assert fake.trainings == 1
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}
    assert runner.run(tmp_path, CELL, **SETTINGS) == []
    assert fake.trainings == 1
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in paths} == before
    more = runner.run(tmp_path, CELL, num_observations=5, num_draws=20)
    assert [path.name[-7:-5] for path in more] == ["o3", "o4"]
    assert fake.trainings == 2


def test_a_killed_run_leaves_whole_rows_and_goes_on(tmp_path, fake):
    # The first observation draws twice, to compile and to be timed.
    fake.fail_at = 3
    with pytest.raises(KeyboardInterrupt):
        runner.run(tmp_path, CELL, **SETTINGS)
    assert missing_observations(tmp_path, CELL, 3) == [1, 2]
    assert len(read_rows(tmp_path)) == 1
    fake.fail_at = None
    assert len(runner.run(tmp_path, CELL, **SETTINGS)) == 2
    assert not list(tmp_path.glob("*.tmp"))


def test_a_row_says_what_was_run(tmp_path, fake):
    fake.spoil = 4
    path = runner.run(tmp_path, CELL, **SETTINGS)[0]
    row = json.loads(path.read_text())
    assert {name: row[name] for name in dataclasses.asdict(CELL)} == dataclasses.asdict(CELL)
    assert (row["observation"], row["num_draws"], row["num_not_finite"], row["metrics"]["num"]) == (0, 20, 4, 16.0)
    assert row["settings"] == {"class": "Fake"}
    assert row["costs"]["simulator_calls"] == 100
    assert row["costs"]["train_seconds"] == 1.5
    assert row["costs"]["draw_seconds"] > 0
    assert 0.05 < row["costs"]["peak_gigabytes"] < 100
    assert len(row["calibration"]["local_ranks"]) == 3 * 5


def test_observations_do_not_depend_on_what_is_trained(tmp_path):
    task = TASKS["gaussian_mixture"]
    (_, first), (_, same), (_, other) = (runner.observe(task, 4, number) for number in (1, 1, 2))
    np.testing.assert_array_equal(first, same)
    assert np.all(first != other)
    draws = runner.exact_draws(tmp_path, task, first, 1, 10)
    again = runner.exact_draws(tmp_path, task, first, 1, 10)
    for name in draws:
        np.testing.assert_array_equal(draws[name], again[name])


def test_a_row_that_is_no_json_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_row(tmp_path, CELL, 0, {"metrics": {"x": float("nan")}})
    assert missing_observations(tmp_path, CELL, 1) == [0]


def test_rows_of_a_cell_are_grouped(tmp_path):
    other = dataclasses.replace(CELL, scale="small")
    for cell, number in ((CELL, 0), (other, 0), (CELL, 1)):
        write_row(tmp_path, cell, number, {})
    groups = group_rows(read_rows(tmp_path))
    assert {cell: len(rows) for cell, rows in groups.items()} == {CELL: 2, other: 1}


def test_an_empty_folder_and_impossible_sizes_are_refused(tmp_path):
    with pytest.raises(ValueError, match="There are no rows in"):
        read_rows(tmp_path)
    with pytest.raises(ValueError, match="sites is 0, expected 1 or more"):
        dataclasses.replace(CELL, sites=0)


def test_the_plan_has_what_tells_most_first():
    cells = sweep.plan()
    assert len(set(cells)) == len(cells)
    assert {cell.task for cell in cells[:6]} == set(TASKS)
    assert [(cell.method, cell.sites, cell.budget) for cell in cells[:18:6]] == [
        ("lf", 50, 10_000),
        ("lf", 50, 5_000),
        ("lf", 50, 1_000),
    ]
    assert [cell.sites for cell in cells[18:42:6]] == [1, 10, 20, 100]
    assert {cell.method for cell in cells} == set(METHODS)
    assert all(cell.scale == effective_scale(cell.method, "small") for cell in cells)


def test_a_sweep_skips_what_is_there_and_stops_in_time(tmp_path, monkeypatch, capsys):
    started, now = [], [0.0]
    monkeypatch.setattr(sweep.time, "monotonic", lambda: now[0])

    def run_apart(folder, cell, num_observations, seconds):
        started.append((cell, seconds))
        now[0] += 50.0
        if len(started) == 2:
            return "failed: no reason"
        for number in range(num_observations):
            write_row(folder, cell, number, {})
        return "done"

    monkeypatch.setattr(sweep, "_run_apart", run_apart)
    cells = sweep.plan()
    for number in range(2):
        write_row(tmp_path, cells[1], number, {})
    left = sweep.sweep(tmp_path, minutes=2, num_observations=2)
    assert [cell for cell, _ in started] == [cells[0], cells[2], cells[3]]
    assert [seconds for _, seconds in started] == [120.0, 70.0, 20.0]
    assert left == [cells[2], *cells[4:]]
    assert "failed: no reason" in capsys.readouterr().out


def test_the_command_line_runs_the_reference_in_a_process_of_its_own(tmp_path, monkeypatch, capsys):
    cell = Cell(task="gaussian_mixture", method="reference", sites=2, budget=10)
    monkeypatch.setattr(sweep, "plan", lambda: [cell])
    monkeypatch.setattr(
        sys, "argv", ["bench", "sweep", "--minutes", "5", "--observations", "1", "--out", str(tmp_path)]
    )
    __main__.main()
    assert "0 cells left to run" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["bench", "table", str(tmp_path)])
    __main__.main()
    assert "| gaussian_mixture | reference | 2 | 10 | 0 | 1 |" in capsys.readouterr().out
    (row,) = read_rows(tmp_path)
    assert row["metrics"]["global_c2st"] == pytest.approx(0.5, abs=0.1)


def test_every_method_is_made_by_configuration():
    task = TASKS["gaussian_linear"]
    made = {
        name: method.make(task, 100, scale)
        for name, method in METHODS.items()
        if method is not None
        for scale in ("full", "small", "brief")
    }
    joint = {name: made[name].posterior_config for name in ("tfmpe", "no-grouping", "joint", "mlp")}
    changed = dataclasses.replace(joint["tfmpe"], grouping=False)
    assert joint["no-grouping"] == changed
    assert joint["joint"] == dataclasses.replace(joint["tfmpe"], shared=True)
    assert joint["mlp"].attention is False
    assert {type(estimator).__name__ for estimator in made.values()} == {"LF", "Direct", "PF"}
    assert [effective_scale(name, "small") for name in ("reference", "lf", "pf", "tfmpe")] == [
        *("full", "full", "full", "small")
    ]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("method", [name for name in METHODS if name != "reference"])
def test_every_method_runs(tmp_path, method):
    cell = Cell(task="gaussian_mixture", method=method, scale="brief", sites=3, budget=90)
    runner.run(tmp_path, cell, num_observations=1, num_draws=40)
    (row,) = read_rows(tmp_path)
    assert row["costs"]["simulator_calls"] == 90
    assert row["num_not_finite"] == 0
    assert row["settings"]["posterior_config"]["width"] == (256 if method == "mlp" else 16)
    jax.clear_caches()
