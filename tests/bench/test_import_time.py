import subprocess
import sys

import pytest

from hsbi.bench import import_time


def test_medians_follow_the_time_a_statement_takes():
    pause = 0.3
    medians = import_time.measure(("pass", f"import time; time.sleep({pause})"), num_repeats=3)
    quick, slow = medians.values()
    # Half the pause is left for the scatter of interpreter start-up on a busy machine.
    assert slow - quick > 0.5 * pause


def test_failing_statement_is_reported_with_its_error():
    with pytest.raises(RuntimeError, match=r"`import no_such_module` exited with status 1:[\s\S]*ModuleNotFoundError"):
        import_time.time_statement("import no_such_module")


@pytest.mark.parametrize(("seconds", "status"), [(1.19, 0), (1.21, 1)])
def test_exit_status_says_whether_the_limit_is_kept(monkeypatch, capsys, seconds, status):
    taken = {import_time.BASELINE: 1.0, import_time.SUBJECT: seconds, import_time.EVERYTHING: 3.0}
    monkeypatch.setattr(import_time, "time_statement", taken.__getitem__)
    assert import_time.main() == status
    assert f"takes {seconds:.2f} times" in capsys.readouterr().out


def test_import_leaves_heavy_libraries_alone():
    heavy = ("arviz", "diffrax", "flax", "jax", "matplotlib", "numpyro", "scipy")
    code = f"import sys, hsbi; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
