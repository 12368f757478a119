"""Host simulators run anywhere with the same result, and failures are rows."""

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import jax.numpy as jnp
import numpy as np
import pytest

import hsbi
from hsbi.model.failures import SimulationError
from hsbi.model.host import Status
from hsbi.model.simulate import simulate_sites
from hsbi.simulation import Ledger
from hsbi.simulation.execution import Execution
from tests.simulation.conftest import KEY, NUM
from tests.simulation.programs import switched_program
from tests.simulation.simulators import Locked, well


def equal(ours, theirs):
    np.testing.assert_array_equal(ours.index, theirs.index)
    for kind in ("values", "observations", "status"):
        for name, value in getattr(theirs, kind).items():
            np.testing.assert_array_equal(getattr(ours, kind)[name], value)


@pytest.mark.parametrize("workers", [1, 4])
def test_results_do_not_depend_on_workers(program, switch, reference, tmp_path, workers):
    switch.set("well", tally=tmp_path / "tally")
    ledger, notes = Ledger(), []
    rows = simulate_sites(
        program, KEY, NUM, ledger=ledger, caller=Execution(workers=workers), progress=lambda *now: notes.append(now)
    )
    equal(rows, reference)
    assert ledger.total == (tmp_path / "tally").stat().st_size == NUM
    assert notes[-1][:2] == (NUM, NUM)
    assert notes[-1][2].endswith("/s")


def test_any_executor_runs_simulators(program, switch, reference, tmp_path):
    switch.set("well", tally=tmp_path / "tally")
    ledger = Ledger()
    with ThreadPoolExecutor(3) as executor:
        equal(simulate_sites(program, KEY, NUM, ledger=ledger, caller=Execution(executor=executor)), reference)
    assert ledger.total == (tmp_path / "tally").stat().st_size == NUM
    with pytest.raises(SimulationError, match="executor takes no more work: RuntimeError: cannot schedule"):
        simulate_sites(program, KEY, NUM, caller=Execution(executor=executor))


def test_rows_do_not_depend_on_their_number(program, switch, reference):
    longer = simulate_sites(program, KEY, NUM + 37, caller=Execution(workers=2))
    np.testing.assert_array_equal(longer.observations["y"][:NUM], reference.observations["y"])


def test_workers_do_not_import_jax(program, switch):
    switch.set("which_modules")
    rows = simulate_sites(program, KEY, 4, caller=Execution(workers=1))
    np.testing.assert_array_equal(rows.observations["y"], np.tile([0.0, 0.0, 1.0], (4, 1)))


@pytest.mark.fault(1)
@pytest.mark.parametrize("workers", [0, 2])
def test_exceptions_are_rows(program, switch, reference, above, workers):
    switch.set("raising", above=above(10))
    notes = []
    with pytest.warns(UserWarning, match=r"'y': 10 of 200 failed \(5.0 %; 10 error\)") as caught:
        rows = simulate_sites(
            program, KEY, NUM, caller=Execution(workers=workers), progress=lambda *now: notes.append(now[2])
        )
    assert len(caught) == 1
    assert notes[-1].endswith("/s, 10 failed")
    assert str(caught[0].message).count("Traceback") == 1
    assert "Rejected: eta is too large" in str(caught[0].message)
    failed = np.asarray(reference.values["eta"]) > above(10)
    np.testing.assert_array_equal(rows.status["y"], np.where(failed, Status.ERROR, Status.OK))
    assert rows.usable.sum() == 190
    np.testing.assert_array_equal(rows.values["eta"], reference.values["eta"])
    np.testing.assert_array_equal(rows.observations["y"][~failed], reference.observations["y"][~failed])
    assert np.isnan(np.asarray(rows.observations["y"])[failed]).all()


@pytest.mark.fault(2)
@pytest.mark.usefixtures("reference")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_simulator_that_fails_at_once_is_an_error(program, switch, tmp_path, workers):
    switch.set("raising", above=-100.0, tally=tmp_path / "tally")
    started = time.perf_counter()
    with pytest.raises(
        SimulationError, match=r"(?s)'y' failed in simulation \d.*Rejected: eta is too large.*\(\), \(\)"
    ):
        simulate_sites(program, KEY, NUM, caller=Execution(workers=workers))
    # The program was compiled for the reference; a pool takes as long to start as the machine takes.
    assert workers or time.perf_counter() - started < 1.0
    assert (tmp_path / "tally").stat().st_size <= 3 + 2 * workers
    switch.set("exiting")
    with pytest.raises(SimulationError, match="SystemExit: 3"):
        simulate_sites(program, KEY, NUM, caller=Execution(workers=workers))


@pytest.mark.fault(1)
def test_more_than_half_failing_is_an_error(program, switch, above):
    switch.set("raising", above=above(101))
    with pytest.raises(
        SimulationError, match=r"(?s)101 of 200 failed \(50.5 %.*'eta' from .* to .*Check the simulator"
    ):
        simulate_sites(program, KEY, NUM)


@pytest.mark.fault(3)
def test_outputs_that_are_not_finite_are_counted(program, switch, reference, above):
    switch.set("not_finite", above=above(6))
    with pytest.warns(
        UserWarning, match=r"'y': 6 of 200 failed \(3.0 %; 6 nonfinite\).* 2 of 3 numbers are not finite"
    ):
        rows = simulate_sites(program, KEY, NUM)
    failed = np.asarray(reference.values["eta"]) > above(6)
    np.testing.assert_array_equal(rows.status["y"], np.where(failed, Status.NONFINITE, Status.OK))


def pattern_of_ranges(rows, number):
    """Write down the ranges of the first latents as an error must show them."""
    return ", ".join(
        rf"'{name}' from {np.min(value[:number]):.4g} to {np.max(value[:number]):.4g}"
        for name, value in rows.values.items()
    )


@pytest.mark.fault(4)
@pytest.mark.parametrize("number", [20, NUM])
def test_nothing_but_numbers_that_are_not_finite_is_an_error(program, switch, reference, tmp_path, number):
    switch.set("not_finite", above=-100.0, tally=tmp_path / "tally")
    with pytest.raises(SimulationError) as caught:
        simulate_sites(program, KEY, number)
    calls = (tmp_path / "tally").stat().st_size
    assert calls == number if number == 20 else 50 <= calls <= number
    message = str(caught.value)
    assert f"'y': {calls} of {calls} failed (100.0 %; {calls} nonfinite)" in message
    assert pattern_of_ranges(reference, calls) in message


@pytest.mark.fault(5)
def test_shapes(program, switch, above):
    switch.set("misshapen", above=-100.0)
    with pytest.raises(
        SimulationError, match=r"'y' failed .*\(shape\).* returned shape \(4,\) .*expected event_shape \(3,\)"
    ):
        simulate_sites(program, KEY, NUM)
    switch.set("misshapen", above=above(3))
    with pytest.warns(UserWarning, match="3 of 200 failed .*3 shape"):
        simulate_sites(program, KEY, NUM)


@pytest.mark.fault(6)
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("dtype", ["int64", "float64", "bool"])
def test_numbers_are_cast_with_one_note(program, switch, reference, caplog, dtype, workers):
    switch.set("of_dtype", dtype=dtype)
    with caplog.at_level("INFO", logger="hsbi"):
        rows = simulate_sites(program, KEY, 20, caller=Execution(workers=workers))
    expected = (100 * np.asarray(reference.values["eta"][:20], float)).astype(dtype)
    np.testing.assert_allclose(rows.observations["y"][:, 0], expected, rtol=1e-6)
    assert [record.message for record in caplog.records] == [
        f"The simulator of 'y' returns {dtype}, which is cast to float32."
    ]


@pytest.mark.fault(6)
@pytest.mark.parametrize("factor", [1e30, 1e300])
def test_what_overflows_is_not_finite(program, switch, reference, above, factor):
    switch.set("overflowing", above=above(6), factor=factor)
    failed = np.asarray(reference.values["eta"]) > above(6)
    if factor == 1e30:
        # Large, but a single-precision number.
        assert simulate_sites(program, KEY, NUM).usable.all()
        return
    with pytest.warns(UserWarning, match=r"6 nonfinite\).* 1 of 3 numbers are not finite as float32"):
        rows = simulate_sites(program, KEY, NUM)
    np.testing.assert_array_equal(rows.status["y"], np.where(failed, Status.NONFINITE, Status.OK))


@pytest.mark.fault(6)
@pytest.mark.parametrize("dtype", ["complex128", "object", "U9"])
@pytest.mark.parametrize("workers", [0, 1])
def test_other_types_are_refused(program, switch, dtype, workers):
    switch.set("of_dtype", dtype=dtype)
    with pytest.raises(SimulationError, match=r"returned dtype .*, expected real numbers"):
        simulate_sites(program, KEY, 20, caller=Execution(workers=workers))


@pytest.mark.fault(6)
def test_complex_numbers_of_a_jax_simulator_are_refused():
    def wave(key, eta):
        return jnp.exp(1j * eta)

    with pytest.raises(TypeError, match="'wave' returned dtype complex64, expected real numbers"):
        hsbi.Simulator(wave, jnp.zeros(3))


@pytest.mark.fault(10)
def test_functions_travel_by_value(reference):
    shift = 0.0

    def local(rng, eta, x):
        return well(rng, eta, x) + shift

    equal(simulate_sites(switched_program(local), KEY, NUM, caller=Execution(workers=1)), reference)


@pytest.mark.fault(10)
def test_what_cannot_be_pickled_is_named():
    program = switched_program(Locked())
    with pytest.raises(TypeError, match=r"'Locked' of 'y' cannot be sent .*'lock' \(a lock\).*workers=0"):
        simulate_sites(program, KEY, 5, caller=Execution(workers=1))
    assert simulate_sites(program, KEY, 5).usable.all()


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="workers is -1"):
        Execution(workers=-1)
    with pytest.raises(ValueError, match="timeout is 0, expected a positive number"):
        Execution(workers=1, timeout=0)
    with pytest.raises(ValueError, match="timeout needs workers of 1 or more and no executor"):
        Execution(timeout=2.0)
    with (
        ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as executor,
        pytest.raises(ValueError, match=r"executor forks its processes, .*get_context\('spawn'\)"),
    ):
        Execution(executor=executor)
    with pytest.raises(TypeError, match=r"executor is a int, .*client.get_executor"):
        Execution(executor=3)  # pyright: ignore[reportArgumentType]


@pytest.mark.fault(8)
@pytest.mark.slow
def test_a_call_that_hangs_is_killed(program, switch, reference, above, tmp_path):
    switch.set("hanging", above=above(1), tally=tmp_path / "tally")
    ledger = Ledger()
    with pytest.warns(UserWarning, match=r"1 of 200 failed \(0.5 %; 1 timeout\).* longer than timeout=2 s"):
        rows = simulate_sites(program, KEY, NUM, ledger=ledger, caller=Execution(workers=2, timeout=2.0))
    assert rows.usable.sum() == 199
    np.testing.assert_array_equal(rows.observations["y"][rows.usable], reference.observations["y"][rows.usable])
    assert ledger.total == (tmp_path / "tally").stat().st_size == NUM


@pytest.mark.fault(9)
@pytest.mark.slow
def test_a_killed_worker_loses_one_simulation_at_most(program, switch, reference, above, tmp_path):
    switch.set("dying", above=above(1), once=str(tmp_path / "once"), tally=tmp_path / "tally")
    ledger = Ledger()
    equal(simulate_sites(program, KEY, NUM, ledger=ledger, caller=Execution(workers=2)), reference)
    assert ledger.counts == {"simulate": NUM, "simulate: repeated": 1}
    assert ledger.total == (tmp_path / "tally").stat().st_size
    switch.set("dying", above=above(2), tally=tmp_path / "second")
    with pytest.warns(UserWarning, match=r"2 of 200 failed .*2 killed"):
        rows = simulate_sites(program, KEY, NUM, ledger=(ledger := Ledger()), caller=Execution(workers=2))
    assert rows.usable.sum() == 198
    np.testing.assert_array_equal(rows.observations["y"][rows.usable], reference.observations["y"][rows.usable])
    assert ledger.total == (tmp_path / "second").stat().st_size == NUM + 2


@pytest.mark.fault(9)
@pytest.mark.slow
@pytest.mark.parametrize("timeout", [None, 60.0])
def test_a_worker_that_ends_by_itself_loses_one_simulation(program, switch, reference, above, tmp_path, timeout):
    switch.set("leaving", above=above(2), tally=tmp_path / "tally")
    ledger = Ledger()
    with pytest.warns(UserWarning, match=r"(?s)2 of 200 failed .*2 killed.*ended with status 0"):
        rows = simulate_sites(program, KEY, NUM, ledger=ledger, caller=Execution(workers=2, timeout=timeout))
    assert rows.usable.sum() == 198
    np.testing.assert_array_equal(rows.observations["y"][rows.usable], reference.observations["y"][rows.usable])
    assert ledger.total == (tmp_path / "tally").stat().st_size == NUM + 2
