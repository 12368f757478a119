"""Simulations are kept, found again, and refused where they belong to another run."""

import errno
import functools
import json
import os
import re

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import hsbi
from hsbi.model.failures import SimulationError
from hsbi.model.routes import bind
from hsbi.model.simulate import simulate_all, simulate_sites
from hsbi.simulation import Ledger, shards, shelf, workers
from hsbi.simulation.execution import Execution
from hsbi.simulation.shards import list_shards
from hsbi.simulation.shelf import Shelf
from tests.model.programs import schools_program
from tests.simulation.conftest import KEY, NUM
from tests.simulation.programs import X, switched_program
from tests.simulation.simulators import Switch
from tests.simulation.test_execution import equal


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(shelf, "_FLUSH_ROWS", 1)


def test_a_store_is_filled_and_used_again(program, switch, reference, tmp_path):
    switch.set("well", tally=tmp_path / "tally")
    folder = tmp_path / "deep" / "store"
    equal(simulate_sites(program, KEY, 120, shelf=Shelf(folder, program, KEY)), first(reference, 120))
    ledger = Ledger({"simulate": NUM})
    rows = simulate_sites(program, KEY, NUM, ledger=ledger, shelf=Shelf(folder, program, KEY))
    equal(rows, reference)
    assert ledger.counts == {"simulate": 80}
    assert ledger.restored == {"simulate": 120}
    assert "80 of 200, and 120 from the store" in str(ledger)
    assert (tmp_path / "tally").stat().st_size == NUM
    # All are there: nothing runs, and fewer may be asked for.
    ledger = Ledger({"simulate": 0})
    equal(simulate_sites(program, KEY, NUM, ledger=ledger, shelf=Shelf(folder, program, KEY)), reference)
    equal(simulate_sites(program, KEY, 50, ledger=ledger, shelf=Shelf(folder, program, KEY)), first(reference, 50))
    assert ledger.total == 0


def first(rows, number):
    def cut(values):
        return {name: value[:number] for name, value in values.items()}

    return rows._replace(
        index=rows.index[:number],
        values=cut(rows.values),
        observations=cut(rows.observations),
        status=cut(rows.status),
    )


def test_simulators_in_jax_are_kept_as_well(tmp_path):
    program = schools_program()
    whole = simulate_sites(program, KEY, 60)
    rows = simulate_sites(program, KEY, 60, shelf=Shelf(tmp_path / "a", program, KEY), chunk_size=20)
    np.testing.assert_allclose(rows.observations["y"], whole.observations["y"], rtol=1e-5)
    again = simulate_sites(program, KEY, 60, shelf=Shelf(tmp_path / "a", program, KEY), ledger=(ledger := Ledger()))
    equal(again, rows)
    assert ledger.total == 0
    values, data = simulate_all(program, KEY, 6, shelf=Shelf(tmp_path / "b", program, KEY, whole=True))
    longer, more = simulate_all(program, KEY, 9, shelf=Shelf(tmp_path / "b", program, KEY, whole=True), ledger=ledger)
    assert ledger.total == 3 * 8
    np.testing.assert_array_equal(longer["theta"][:6], values["theta"])
    np.testing.assert_array_equal(more["y"][:6], data["y"])


@pytest.mark.fault(11)
@pytest.mark.usefixtures("small_shards")
def test_a_resumed_run_of_a_jax_simulator_has_the_same_chunks(tmp_path):
    """Compiled code rounds by the size of a chunk, so equal chunks are what makes equal rows."""
    program = schools_program()
    chunks: list[int] = []

    def stop(done, total, note):
        raise InterruptedError

    def settings(progress):
        return {"shelf": Shelf(tmp_path, program, KEY), "chunk_size": 20, "progress": progress}

    whole = simulate_sites(program, KEY, 50, chunk_size=20, progress=lambda done, *_: chunks.append(done))
    with pytest.raises(InterruptedError):
        simulate_sites(program, KEY, 50, **settings(stop))
    resumed: list[int] = []
    equal(simulate_sites(program, KEY, 50, **settings(lambda done, *_: resumed.append(done))), whole)
    # The first comes from the store.
    assert chunks == resumed == [20, 40, 50]


@pytest.mark.fault(16)
def test_another_run_is_refused_by_name(program, switch, tmp_path):
    simulate_sites(program, KEY, 5, shelf=Shelf(tmp_path, program, KEY))
    with pytest.raises(ValueError, match=r"random key is \[0, 2\], the store's is \[0, 1\]"):
        Shelf(tmp_path, program, jax.random.key(2))
    with pytest.raises(ValueError, match="argument 'x' has other values"):
        Shelf(tmp_path, switched_program(switch, X + 1.0), KEY)
    with pytest.raises(
        ValueError, match=r"shape of site 'eta' is \[4\], in the store \[5\].*'x' is float64\[4\], in the"
    ):
        Shelf(tmp_path, switched_program(switch, X[:4]), KEY)
    with pytest.raises(ValueError, match=r"site 'tau' is only in the model; .*site 'eta' is only in the store"):
        Shelf(tmp_path, schools_program(), KEY)
    with pytest.raises(ValueError, match="its rows are single sites, not whole data sets"):
        Shelf(tmp_path, program, KEY, whole=True)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps({**manifest, "format": 99}))
    with pytest.raises(ValueError, match="has format 99, and this version of hsbi reads up to 1"):
        Shelf(tmp_path, program, KEY)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match=r"manifest.json' cannot be read"):
        hsbi.Store(tmp_path)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"has simulations but no manifest.json"):
        Shelf(tmp_path, program, KEY)


def test_changed_code_is_noticed(tmp_path):
    class Other(Switch):
        def __call__(self, rng, eta, x):
            return super().__call__(rng, eta, x) + 0.0

    class Third(Switch):
        def __call__(self, rng, eta, x):
            return super().__call__(rng, eta, x) + 1.0

    Shelf(tmp_path, switched_program(Other()), KEY)
    Shelf(tmp_path, switched_program(Other()), KEY)
    with pytest.warns(UserWarning, match="code of the simulator of 'y' has changed"):
        Shelf(tmp_path, switched_program(Third()), KEY)


@pytest.mark.fault(14)
@pytest.mark.usefixtures("small_shards")
def test_damaged_shards_are_set_aside_and_simulated_again(program, switch, reference, tmp_path):
    folder = tmp_path / "store"
    caller = Execution(workers=2)
    equal(simulate_sites(program, KEY, NUM, caller=caller, shelf=Shelf(folder, program, KEY)), reference)
    paths = list_shards(folder)
    assert len(paths) > 3
    paths[0].write_bytes(paths[0].read_bytes()[:-40])
    content = bytearray(paths[1].read_bytes())
    content[content.index(b"NUMPY") + 200] ^= 1
    paths[1].write_bytes(content)
    switch.set("well", tally=tmp_path / "tally")
    ledger = Ledger()
    with pytest.warns(UserWarning, match=r"rows-\d+-\d+-\w+.npz is damaged: .*moved to .*damaged.*run again") as caught:
        equal(simulate_sites(program, KEY, NUM, ledger=ledger, shelf=Shelf(folder, program, KEY)), reference)
    assert len(caught) == 2
    assert {path.name for path in (folder / "damaged").iterdir()} == {paths[0].name, paths[1].name}
    assert 0 < ledger.total == (tmp_path / "tally").stat().st_size < NUM
    equal(
        simulate_sites(program, KEY, NUM, shelf=Shelf(folder, program, KEY), ledger=Ledger({"simulate": 0})), reference
    )


@pytest.mark.usefixtures("small_shards")
def test_many_small_shards_are_merged(program, switch, reference, tmp_path, monkeypatch):
    caller = Execution(workers=2)
    equal(simulate_sites(program, KEY, NUM, caller=caller, shelf=Shelf(tmp_path, program, KEY)), reference)
    before = len(list_shards(tmp_path))
    monkeypatch.setattr(shelf, "_MANY_FILES", 3)
    for _ in range(2):
        equal(simulate_sites(program, KEY, NUM, ledger=Ledger(0), shelf=Shelf(tmp_path, program, KEY)), reference)
    assert len(list_shards(tmp_path)) == 1 < before
    assert len(hsbi.Store(tmp_path)) == NUM


@pytest.mark.fault(13)
@pytest.mark.usefixtures("small_shards")
def test_a_full_disk_leaves_earlier_shards_readable(program, switch, reference, tmp_path, monkeypatch):
    written = []

    def full(descriptor):
        written.append(descriptor)
        # Design and manifest come first, then two shards.
        if len(written) > 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(shards.os, "fsync", full)
        with pytest.raises(
            OSError, match=r"(?s)Cannot write .*rows-.*No space left on device.*stay readable: make room"
        ):
            simulate_sites(program, KEY, NUM, caller=Execution(workers=1), shelf=Shelf(tmp_path, program, KEY))
    assert len(list_shards(tmp_path)) == 2
    assert not list(tmp_path.glob(".*.tmp"))
    assert len(hsbi.Store(tmp_path)) > 0
    equal(simulate_sites(program, KEY, NUM, shelf=Shelf(tmp_path, program, KEY)), reference)


@pytest.mark.fault(13)
def test_no_room_for_the_results_of_workers_is_an_error(program, switch, reference, tmp_path, monkeypatch):
    """Without it a worker would end by a bus error as it writes into its map."""
    made = []

    def full(descriptor, offset, size):
        made.append(size)
        if len(made) > 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    caller = Execution(workers=1)
    with monkeypatch.context() as patch:
        patch.setattr(workers.os, "posix_fallocate", lambda fd, at, size: (full(fd, at, size), os.truncate(fd, size)))
        with pytest.raises(
            OSError, match=r"Cannot write .*\.board', .*No space left on device.*Make room, or set TMPDIR"
        ):
            simulate_sites(program, KEY, NUM, caller=caller, shelf=Shelf(tmp_path, program, KEY))
    equal(simulate_sites(program, KEY, NUM, caller=caller, shelf=Shelf(tmp_path, program, KEY)), reference)


@pytest.mark.parametrize(
    ("age", "since", "late"), [(0.5, 0.5, False), (2.0, 1.1, True), (20.0, 3.9, False), (20.0, 4.1, True)]
)
def test_a_fifth_of_a_run_is_lost_at_most(program, tmp_path, monkeypatch, age, since, late):
    shelved = Shelf(tmp_path, program, KEY)
    now = shelf.time.monotonic() + 100.0
    shelved._opened, shelved._flushed = now - age, now - since
    monkeypatch.setattr(shelf.time, "monotonic", lambda: now)
    assert shelved._is_late() == late
    shelved._opened, shelved._flushed = now - 3600.0, now - 30.1
    assert shelved._is_late()


def test_nothing_is_kept_of_a_simulator_that_never_worked(program, switch, reference, tmp_path):
    switch.set("raising", above=-100.0)
    with pytest.raises(SimulationError, match="failed in simulation 0"):
        simulate_sites(program, KEY, NUM, shelf=Shelf(tmp_path, program, KEY))
    switch.set("well")
    equal(simulate_sites(program, KEY, NUM, shelf=Shelf(tmp_path, program, KEY)), reference)


def test_a_folder_that_cannot_be_made_is_named(program, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match=r"Cannot make the store .*file/store"):
        Shelf(tmp_path / "file" / "store", program, KEY)


def schools(sigma, y=None, *, scale=5.0, simulator=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, scale))
    with numpyro.plate("school", len(sigma)):
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
        fn = dist.Normal(theta, sigma) if simulator is None else hsbi.Simulator(simulator, theta, sigma)
        numpyro.sample("y", fn, obs=y)


@pytest.mark.fault(16)
def test_another_prior_is_refused_by_its_density(tmp_path):
    sigma = np.array([1.0, 2.0, 3.0])
    program = bind(schools, (sigma,), {"y": sigma})
    rows = simulate_sites(program, KEY, 12, shelf=Shelf(tmp_path, program, KEY))
    other = bind(functools.partial(schools, scale=6.0), (sigma,), {"y": sigma})
    with pytest.raises(
        ValueError, match=r"another run: site 'mu': the log density at a fixed point was -2.54.*, is -2.7"
    ):
        Shelf(tmp_path, other, KEY)
    # A store of an earlier version, without densities and checksum, is still read.
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    old = {name: value for name, value in manifest.items() if name not in ("densities", "sha256")}
    (tmp_path / "manifest.json").write_text(json.dumps(old))
    equal(simulate_sites(program, KEY, 12, shelf=Shelf(tmp_path, program, KEY), ledger=Ledger(0)), rows)


def test_changed_code_of_a_jax_simulator_is_noticed(tmp_path):
    def first(key, theta, sigma):
        return theta + sigma * jax.random.normal(key)

    def second(key, theta, sigma):
        return theta - sigma * jax.random.normal(key)

    sigma = np.array([1.0, 2.0, 3.0])
    Shelf(tmp_path, bind(functools.partial(schools, simulator=first), (sigma,), {}), KEY)
    with pytest.warns(UserWarning, match="code of the simulator of 'y' has changed"):
        Shelf(tmp_path, bind(functools.partial(schools, simulator=second), (sigma,), {}), KEY)


@pytest.mark.fault(14)
def test_no_damage_to_manifest_or_design_loads_wrong_numbers(program, switch, tmp_path):
    simulate_sites(program, KEY, 5, shelf=Shelf(tmp_path, program, KEY))
    expected = hsbi.Store(tmp_path).to_xarray()
    rng, messages = np.random.default_rng(0), []
    for name in ("manifest.json", "design.npz"):
        content = (tmp_path / name).read_bytes()
        for damage in range(150):
            broken = bytearray(content)
            if damage % 4 == 0:
                broken = broken[: rng.integers(len(content))]
            else:
                broken[rng.integers(len(content))] ^= 1 << rng.integers(8)
            (tmp_path / name).write_bytes(broken)
            try:
                store = hsbi.Store(tmp_path)
                found, key = store.to_xarray(), store.key
            except ValueError as error:
                messages.append(str(error))
                continue
            assert found.identical(expected)
            assert jax.random.key_data(key).tolist() == jax.random.key_data(KEY).tolist()
        (tmp_path / name).write_bytes(content)
    assert len(messages) > 150
    assert all(
        re.search(r"(manifest.json|design.npz).* (cannot be read|is damaged)|has format", text) for text in messages
    )
    # Covariates are known to whoever opens the store to go on with it.
    (tmp_path / "design.npz").write_bytes(b"no archive")
    Shelf(tmp_path, program, KEY)
    assert hsbi.Store(tmp_path).to_xarray().identical(expected)
