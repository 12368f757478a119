"""Every example runs from start to end in its small form."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import hsbi

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("[0-9][0-9]_*.py"))
# Examples that train: even in their small form they compile every stage.
SLOW = {"01_eight_schools", "02_seirs", "03_radon", "04_populations"}


def test_examples_are_found():
    assert {script.stem for script in EXAMPLES} >= SLOW


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(script, marks=[pytest.mark.slow] if script.stem in SLOW else [], id=script.stem)
        for script in EXAMPLES
    ],
)
def test_example_runs(script: Path, tmp_path: Path):
    done = subprocess.run(
        [sys.executable, str(script), "--smoke", "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        # Compiling takes most of the time of a run this small.
        env={**os.environ, "MPLBACKEND": "Agg", "HSBI_NO_PROGRESS": "1", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pictures = list(tmp_path.glob("*.png"))
    assert pictures
    assert all(picture.stat().st_size > 1_000 for picture in pictures)


@pytest.mark.slow
def test_populations_go_on_after_a_kill(tmp_path: Path):
    script = next(script for script in EXAMPLES if script.stem == "04_populations")
    stored = 0
    for more in (40, 60):
        number = stored + more
        done = subprocess.run(
            [sys.executable, str(script), "--out", str(tmp_path), "--kill-after", str(number)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "MPLBACKEND": "Agg", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
            check=False,
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
        stored = len(hsbi.Store(tmp_path / "populations"))
        assert f"killed with {stored} simulations in the store" in done.stdout
        assert number <= stored < 6_000
