"""The Python blocks of the README and of the docs pages run as printed, in order, with training left out."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest

from hsbi.training.fit import FitResult

ROOT = Path(__file__).parents[1]
PAGES = [
    pytest.param("docs/model.md"),
    pytest.param("docs/diagnostics.md"),
    pytest.param("docs/benchmark.md"),
    pytest.param("README.md", marks=pytest.mark.slow),
    pytest.param("docs/inference.md", marks=pytest.mark.slow),
    pytest.param("docs/observations.md", marks=pytest.mark.slow),
    pytest.param("docs/estimators.md", marks=[pytest.mark.slow, pytest.mark.long]),
    pytest.param("docs/simulations.md", marks=pytest.mark.slow),
    pytest.param("docs/trust.md", marks=pytest.mark.slow),
]


def python_blocks(page: str) -> list[tuple[int, str]]:
    """Give the line and the code of each block."""
    text = (ROOT / page).read_text()
    return [
        (text.count("\n", 0, match.start(1)), match.group(1))
        for match in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    ]


def do_not_train(key: Any, params: Any, *args: Any, **kwargs: Any) -> FitResult:
    """Return the weights that training would start from."""
    return FitResult(params, np.zeros((1, 2)), 0.0, 0.0)


def simulate_city(key: jax.Array, beta0: jax.Array, amplitude: jax.Array, weeks: jax.Array) -> jax.Array:
    """Stand in for the simulator that the README leaves to the reader."""
    level = beta0 * (1.0 + amplitude * jnp.cos(2.0 * jnp.pi * weeks / 52.0))
    return level + 0.1 * jax.random.normal(key, weeks.shape)


@pytest.fixture
def quick_compilation() -> Iterator[None]:
    """Leave optimizations of compiled code out: it runs for a moment only."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.mark.usefixtures("quick_compilation")
@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_run(page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HSBI_NO_PROGRESS", "1")
    for module in ("surrogate_fit", "stages", "joint", "shared"):
        monkeypatch.setattr(f"hsbi.inference.{module}.fit", do_not_train)
    weeks = jnp.tile(jnp.linspace(0.0, 51.0, 6), (4, 1))
    namespace: dict[str, Any] = {"simulate_city": simulate_city, "weeks": weeks, "cases": 0.5 + 0.01 * weeks}
    blocks = python_blocks(page)
    assert blocks
    for line, code in blocks:
        # Blank lines in front make tracebacks point at the page's own lines.
        exec(compile("\n" * line + code, ROOT / page, "exec"), namespace)
    plt.close("all")


@pytest.mark.slow
def test_the_cluster_of_the_page_runs_as_a_script(tmp_path: Path):
    pytest.importorskip("distributed")
    page = (ROOT / "docs/simulations.md").read_text()
    (cluster,) = re.findall(r"^```{code-block} python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    definitions = python_blocks("docs/simulations.md")[0][1].partition("lf = ")[0]
    (tmp_path / "script.py").write_text(definitions + cluster)
    done = subprocess.run(
        [sys.executable, "script.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HSBI_NO_PROGRESS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"total +200", done.stdout)
