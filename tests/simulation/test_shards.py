"""No damage to a shard goes unnoticed."""

import numpy as np
import pytest

from hsbi.simulation.shards import DamagedError, list_shards, read_shard, sweep, write_shard

NUM_DAMAGES = 400


@pytest.mark.fault(14)
def test_every_damage_is_detected_or_harmless(tmp_path):
    rng = np.random.default_rng(0)
    columns = {
        "number": np.arange(20, 60),
        "seconds": rng.random(40).astype(np.float32),
        "value/mu": rng.normal(size=(40, 2)).astype(np.float32),
        "observation/y": rng.normal(size=(40, 1, 3)).astype(np.float32),
    }
    path = write_shard(tmp_path, columns, [[21, "y", 1, "ValueError", "no", ""]])
    content = path.read_bytes()
    detected = 0
    for damage in range(NUM_DAMAGES):
        broken = bytearray(content)
        if damage % 4 == 0:
            broken = broken[: rng.integers(len(content))]
        else:
            broken[rng.integers(len(content))] ^= 1 << rng.integers(8)
        path.write_bytes(broken)
        try:
            got, failures = read_shard(path)
        except DamagedError:
            detected += 1
            continue
        assert failures == [[21, "y", 1, "ValueError", "no", ""]]
        assert got.keys() == columns.keys()
        for name, value in columns.items():
            np.testing.assert_array_equal(got[name], value)
    assert detected > 0.7 * NUM_DAMAGES


def test_rows_are_sorted_and_files_named_by_them(tmp_path):
    columns = {"number": np.array([7, 3, 5]), "value/mu": np.array([0.7, 0.3, 0.5])}
    path = write_shard(tmp_path, columns, [])
    assert path == write_shard(tmp_path, columns, [])
    assert path.name.startswith("rows-000000003-000000007-")
    other = write_shard(tmp_path, {name: value[:2] for name, value in columns.items()}, [])
    assert list_shards(tmp_path) == sorted([path, other])
    got, _ = read_shard(path)
    np.testing.assert_array_equal(got["value/mu"], [0.3, 0.5, 0.7])


def test_objects_are_neither_written_nor_read(tmp_path):
    with pytest.raises(ValueError, match="Object arrays cannot be saved"):
        write_shard(tmp_path, {"number": np.arange(2), "value/mu": np.array([{}, {}])}, [])


def test_stale_temporary_files_are_swept(tmp_path):
    import os

    old, new = tmp_path / ".old.tmp", tmp_path / ".new.tmp"
    for path in (old, new):
        path.touch()
    os.utime(old, (0, 0))
    sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".new.tmp"]
