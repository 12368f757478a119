"""Nothing but the package, a processor and a folder is needed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.fault(27)
@pytest.mark.slow
def test_read_only_home_without_network_or_gpu(tmp_path):
    # No folder can be made below a device, not even by root; every cache that follows a convention would go there.
    places = ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
    hidden = {"CUDA_VISIBLE_DEVICES": "", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "HSBI_NO_PROGRESS": "1"}
    environment = {name: value for name, value in os.environ.items() if name not in ("JAX_PLATFORMS", "MPLCONFIGDIR")}
    environment |= {"PYTHONPATH": str(ROOT), **dict.fromkeys(places, "/dev/null"), **hidden}
    done = subprocess.run(
        [sys.executable, "-m", "tests.inference.run_alone", tmp_path],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "cpu 40 True"
    assert {path.name for path in tmp_path.iterdir()} == {"store", "saved.hsbi"}
