"""Archives come back bit by bit, or not at all."""

import io
import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from hsbi.training.archive import read_archive, write_archive

FACTS = {"name": "a", "numbers": [1, 2.5, None]}
ARRAYS = {
    "0": np.arange(12, dtype=np.float32).reshape(3, 4),
    "1": np.array([True, False, True]),
    "2": np.zeros((0, 5), np.int64),
    "3": np.float64(0.1).reshape(()),
}


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "a.hsbi"
    write_archive(file, "thing", 3, FACTS, ARRAYS)
    return file


def rewrite(path, change):
    """Change the members of an archive and write it with correct checksums, as someone else might."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def edit_manifest(path, **changes):
    def change(members):
        members["manifest.json"] = json.dumps({**json.loads(members["manifest.json"]), **changes})

    rewrite(path, change)


def test_contents_come_back(path):
    facts, arrays = read_archive(path, "thing", 3)
    assert facts == FACTS
    assert list(arrays) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        assert arrays[name].shape == array.shape
        np.testing.assert_array_equal(arrays[name], array)


def test_equal_contents_are_equal_bytes(path, tmp_path):
    write_archive(tmp_path / "b.hsbi", "thing", 3, FACTS, ARRAYS)
    assert (tmp_path / "b.hsbi").read_bytes() == path.read_bytes()


def test_every_flipped_bit_is_found_or_harmless(path):
    # Exhaustive over bytes, with the bit going round: what is read is what was written, or nothing is.
    original = path.read_bytes()
    found = 0
    for place in range(len(original)):
        damaged = bytearray(original)
        damaged[place] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        try:
            facts, arrays = read_archive(path, "thing", 3)
        except ValueError:
            found += 1
            continue
        assert facts == FACTS
        assert list(arrays) == list(ARRAYS)
        assert all(arrays[name].tobytes() == ARRAYS[name].tobytes() for name in ARRAYS)
    # Dates and attributes in the zip's own headers are all that may differ unseen.
    assert found > 0.7 * len(original)


def test_every_truncation_is_found(path):
    original = path.read_bytes()
    for length in range(len(original)):
        path.write_bytes(original[:length])
        with pytest.raises(ValueError, match=r"truncated or damaged|no zip archive"):
            read_archive(path, "thing", 3)


def test_another_kind_and_a_newer_version_are_refused(path):
    with pytest.raises(ValueError, match="is a saved thing, expected a saved estimator"):
        read_archive(path, "estimator", 3)
    with pytest.raises(ValueError, match="has version 3 of the format, but this hsbi reads up to version 2"):
        read_archive(path, "thing", 2)


def test_foreign_files_are_refused(tmp_path):
    (tmp_path / "a").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(ValueError, match="it is no zip archive"):
        read_archive(tmp_path / "a", "thing", 3)
    np.savez(tmp_path / "b.npz", x=np.ones(3))
    with pytest.raises(ValueError, match="not one that hsbi wrote"):
        read_archive(tmp_path / "b.npz", "thing", 3)
    for content in ('{"version": 1}', "[1, 2]"):
        with zipfile.ZipFile(tmp_path / "c", "w") as archive:
            archive.writestr("manifest.json", content)
        with pytest.raises(ValueError, match="it has no hsbi manifest"):
            read_archive(tmp_path / "c", "thing", 3)
    with pytest.raises(FileNotFoundError):
        read_archive(tmp_path / "absent", "thing", 3)


def test_arrays_must_be_those_of_the_manifest(path):
    rewrite(path, lambda members: members.update({"arrays/9.npy": members["arrays/0.npy"]}))
    with pytest.raises(ValueError, match=r"not those of its manifest \(arrays/9.npy\)"):
        read_archive(path, "thing", 3)
    rewrite(path, lambda members: (members.pop("arrays/9.npy"), members.pop("arrays/1.npy")))
    with pytest.raises(ValueError, match=r"not those of its manifest \(arrays/1.npy\)"):
        read_archive(path, "thing", 3)


def test_an_array_of_another_shape_or_type_is_refused(path):
    rewrite(path, lambda members: members.update({"arrays/0.npy": members["arrays/2.npy"]}))
    with pytest.raises(ValueError, match=r"array 0 is <i8 of shape \(0, 5\), but the manifest says <f4"):
        read_archive(path, "thing", 3)


class Touch:
    """Leave a mark when unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@pytest.mark.fault(15)
def test_no_code_in_a_file_is_run(path, tmp_path):
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.array([Touch(tmp_path / "mark")], dtype=object), allow_pickle=True)
    edit_manifest(path, arrays={"0": {"dtype": "|O", "shape": [1]}})

    def inject(members):
        for name in ("1", "2", "3"):
            members.pop(f"arrays/{name}.npy")
        members["arrays/0.npy"] = stream.getvalue()

    rewrite(path, inject)
    with pytest.raises(ValueError, match="Object arrays cannot be loaded"):
        read_archive(path, "thing", 3)
    assert not (tmp_path / "mark").exists()


def test_arrays_without_numbers_are_not_written(tmp_path):
    with pytest.raises(TypeError, match="Array 'words' has type <U1"):
        write_archive(tmp_path / "a.hsbi", "thing", 1, {}, {"words": np.array(["a"])})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.fault(13)
def test_a_failed_write_names_the_path_and_keeps_the_earlier_file(path, monkeypatch):
    before = path.read_bytes()

    def no_space(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", no_space)
    with pytest.raises(OSError, match=r"cannot write: No space left on device.*a\.hsbi"):
        write_archive(path, "thing", 3, {}, {})
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]
