"""Runs that end early, in every way that they do, go on where they ended."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import hsbi
from hsbi.model.simulate import simulate_sites
from hsbi.simulation.shards import list_shards
from hsbi.simulation.shelf import Shelf
from tests.simulation.conftest import KEY, NUM
from tests.simulation.test_execution import equal

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def start(folder, output, *, workers=2, seconds=0.03, **environment):
    command = [sys.executable, "-m", "tests.simulation.run_store"]
    return subprocess.Popen(
        [*command, str(folder), str(workers), str(NUM), str(seconds), str(output)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_shards(run, folder, number):
    while len(list_shards(folder)) < number:
        assert run.poll() is None, run.stderr.read()
        time.sleep(0.02)


def alive_in_group(group):
    """List the processes of a group that are neither gone nor zombies."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] not in "ZX":
            found.append(int(path.parent.name))
    return found


def check(output, reference):
    with np.load(output) as found:
        for name, value in {**reference.values, **reference.observations}.items():
            np.testing.assert_array_equal(found[name], value)


@pytest.mark.fault(11)
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_killed_three_times_and_resumed(reference, tmp_path):
    folder, output = tmp_path / "store", tmp_path / "output.npz"
    kept, begun = 0, 0
    # Begun at most in 0.3 s until rows are written and in two batches of 0.25 s, by two workers of 0.03 s a call.
    most_lost = 2 * (0.3 + 2 * 0.25) / 0.03
    for _ in range(3):
        with start(folder, output) as run:
            wait_for_shards(run, folder, len(list_shards(folder)) + 2)
            run.kill()
        deadline = time.monotonic() + 5.0
        while alive_in_group(run.pid):
            assert time.monotonic() < deadline, "processes are left 5 s after their parent was killed"
            time.sleep(0.05)
        before, kept = kept, len(hsbi.Store(folder))
        assert before < kept < NUM
        made = (tmp_path / "output.tally").stat().st_size - begun
        begun += made
        assert 0 <= made - (kept - before) <= most_lost
    with start(folder, output) as run:
        assert run.wait() == 0
    check(output, reference)
    assert (tmp_path / "output.tally").stat().st_size - begun == NUM - kept


@pytest.mark.fault(12)
@pytest.mark.parametrize("workers", [0, 2])
def test_interrupted_by_the_keyboard(program, switch, reference, tmp_path, workers):
    folder = tmp_path / "store"
    with start(folder, tmp_path / "output.npz", workers=workers, seconds=0.1) as run:
        wait_for_shards(run, folder, 2)
        os.killpg(run.pid, signal.SIGINT)
        _, errors = run.communicate(timeout=5.0)
    assert run.returncode != 0
    kept = len(hsbi.Store(folder))
    assert f"Interrupted after {kept} of 200 simulations, all kept in" in errors
    assert "Run the same call again to resume" in errors
    equal(simulate_sites(program, KEY, NUM, shelf=Shelf(folder, program, KEY)), reference)


@pytest.mark.fault(26)
def test_two_processes_fill_one_store(reference, tmp_path):
    folder = tmp_path / "store"
    outputs = [tmp_path / "first.npz", tmp_path / "second.npz"]
    runs = [start(folder, output, seconds=0.01) for output in outputs]
    for run, output in zip(runs, outputs, strict=True):
        _, errors = run.communicate()
        assert run.returncode == 0, errors
        check(output, reference)
    assert len(hsbi.Store(folder)) == NUM
