"""Saved estimators: equal draws after loading, other models refused, damage found."""

import copy
import dataclasses
import json
import random
import subprocess
import sys
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import hsbi
from hsbi.training.archive import read_archive, write_archive
from hsbi.training.fit import FitResult
from tests.inference import problems

SIGMA, Y = problems.SCHOOLS_SIGMA, problems.SCHOOLS_Y
KEY = jax.random.key(7)
SMALL = {"width": 16, "batch_size": 8, "num_ode_steps": 3}
FACTORIZED, JOINT = (
    hsbi.FactorizedConfig(**SMALL, head=hsbi.FitConfig(num_steps=1)),
    hsbi.JointConfig(**SMALL, heads=2, num_blocks=1),
)
SURROGATE = hsbi.SurrogateConfig(width=16, num_ode_steps=3)


def shake(key, params, *args, **kwargs):
    """Stand for training: weights that are all different, so that no two can be exchanged unseen."""
    draws = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    shaken = jax.tree.map(
        lambda leaf: jnp.asarray(np.asarray(leaf) + 0.1 * draws.normal(size=leaf.shape), leaf.dtype), params
    )
    return FitResult(shaken, np.array([[2.0, 3.0], [0.1, np.nan]]), 3.0, 1.0)


@pytest.fixture(scope="module", autouse=True)
def without_training():
    """Leave training out, and most optimizations of compiled code, which takes the time here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        for module in ("surrogate_fit", "law_fit", "stages", "joint"):
            patch.setattr(f"hsbi.inference.{module}.fit", shake)
        for module in ("surrogate_fit", "law_fit"):
            patch.setattr(f"hsbi.inference.{module}.helps", lambda *args: True)
        before = jax.config.read("jax_disable_most_optimizations")
        jax.config.update("jax_disable_most_optimizations", True)
        yield
        jax.config.update("jax_disable_most_optimizations", before)


def curve(key, rate, times):
    return rate * times + 0.1 * jax.random.normal(key, times.shape)


def growth(times, scale=1.0, y=None):
    rate = numpyro.sample("rate", dist.Normal(0.0, scale))
    with numpyro.plate("site", times.shape[0]):
        eta = numpyro.sample("eta", dist.LogNormal(rate, 0.1))
        numpyro.deterministic("twice", 2 * eta)
        simulator = hsbi.Simulator(curve, eta, times, param_event_dims=(0, 1))
        numpyro.sample("y", simulator, obs=y, infer={"inputs": times})


def schools(sigma, y=None, settings=None):
    problems.eight_schools(sigma, y)


TIMES = np.linspace(0.0, 1.0, 15, dtype=np.float32).reshape(3, 5)
CASES = {
    "LF, factorized": (hsbi.LF, schools, (SIGMA,), {"y": Y}, FACTORIZED),
    "LF, joint": (hsbi.LF, growth, (TIMES, 0.5), {"y": 1 + TIMES}, JOINT),
    "Direct, factorized": (
        *(hsbi.Direct, problems.surgical, (problems.SURGICAL_TRIALS,)),
        *({"deaths": problems.SURGICAL_DEATHS}, FACTORIZED),
    ),
    "Direct, joint": (hsbi.Direct, problems.eight_schools, (SIGMA,), {"y": Y}, JOINT),
}


def train(case, path):
    kind, model, args, kwargs, config = CASES[case]
    settings = {"num_simulations": 120, "num_samples": 11, "posterior_config": config, "progress": False}
    if kind is hsbi.LF:
        settings |= {"surrogate_config": SURROGATE, "num_sites": (2, len(args[0]))}
    estimator = kind(model, **settings)
    estimator.simulate(jax.random.key(0), *args, **kwargs)
    estimator.fit(jax.random.key(1))
    estimator.save(path)
    return estimator


@pytest.fixture(scope="module")
def saved(tmp_path_factory, without_training):
    """Give an estimator and the file it was saved in, made once."""
    folder = tmp_path_factory.mktemp("saved")
    made = {}

    def give(case):
        if case not in made:
            path = folder / f"{case}.hsbi"
            made[case] = train(case, path), path
        return made[case]

    return give


@pytest.fixture
def schools_file(saved, tmp_path):
    """Give a copy of a saved estimator that may be changed."""
    path = tmp_path / "schools.hsbi"
    path.write_bytes(saved("LF, factorized")[1].read_bytes())
    return path


def assert_same_tree(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert type(a) is type(b)
        assert np.asarray(a).dtype == np.asarray(b).dtype
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


LONG = (pytest.mark.slow, pytest.mark.long)
EVERY_CASE = [pytest.param(case, marks=() if case == "LF, factorized" else LONG, id=case) for case in CASES]


@pytest.mark.parametrize("case", EVERY_CASE)
def test_a_loaded_estimator_is_the_one_that_was_saved(saved, case):
    _, model, args, kwargs, _ = CASES[case]
    estimator, path = saved(case)
    loaded = hsbi.load(path, model, progress=False)
    assert type(loaded) is type(estimator)
    for name in (*estimator._settings, "timings"):
        assert getattr(loaded, name) == getattr(estimator, name), name
    assert_same_tree(loaded.posterior, estimator.posterior)
    assert_same_tree(loaded.losses, estimator.losses)
    assert loaded.ledger.counts == estimator.ledger.counts
    assert loaded.ledger.budget == estimator.ledger.budget
    assert loaded.ledger.restored == estimator.ledger.restored
    assert loaded._ranges == estimator._ranges
    assert repr(loaded) == repr(estimator) or "object at" in repr(loaded)
    ours, theirs = (each.sample(KEY, *args, **kwargs) for each in (loaded, estimator))
    assert list(ours) == list(theirs)
    assert all(np.asarray(ours[name]).tobytes() == np.asarray(theirs[name]).tobytes() for name in ours)
    assert all(np.std(np.asarray(value)[:, ...], axis=0).min() > 0 for value in ours.values())


@pytest.mark.slow
def test_a_loaded_surrogate_predicts_the_same(saved):
    _, model, args, kwargs, _ = CASES["LF, joint"]
    estimator, path = saved("LF, joint")
    loaded = hsbi.load(path, model, progress=False)
    assert_same_tree(loaded.surrogate, estimator.surrogate)
    assert loaded.surrogate["y"].flow is not None
    predicted = []
    for each in (loaded, estimator):
        each.sample(KEY, *args, **kwargs)
        predicted.append(np.asarray(each.posterior_predictive(KEY)["y"]).tobytes())
    assert predicted[0] == predicted[1]


def test_saving_a_loaded_estimator_gives_the_same_file(saved, tmp_path):
    _, path = saved("LF, factorized")
    loaded = hsbi.load(path, problems.eight_schools, progress=False)
    loaded.save(tmp_path / "again.hsbi")
    assert (tmp_path / "again.hsbi").read_bytes() == path.read_bytes()
    with pytest.raises(ValueError, match="no simulations yet"):
        loaded.fit(KEY)
    with pytest.raises(ValueError, match="no draws yet"):
        loaded.get_samples()


def test_a_loaded_estimator_still_checks_its_data(saved):
    loaded = hsbi.load(saved("LF, factorized")[1], problems.eight_schools, progress=False)
    with pytest.warns(UserWarning, match="lie outside what was simulated"):
        loaded.sample(KEY, SIGMA, y=Y + 1e6)
    with pytest.raises(ValueError, match="1 of 8 values of 'y'"):
        loaded.sample(KEY, SIGMA, y=Y.at[0].set(jnp.nan))


@pytest.mark.parametrize("case", EVERY_CASE)
def test_the_data_are_not_in_the_file(saved, case):
    (data,) = CASES[case][3].values()
    _, arrays = read_archive(saved(case)[1], "estimator", 1)
    assert not any(np.array_equal(array, data) for array in arrays.values())
    # The other arguments are: the model is read with them when the file is loaded.
    assert any(np.array_equal(array, CASES[case][2][0]) for array in arrays.values())


def variant(*, mu=None, tau=None, plate="school", extra=False):
    """Eight schools with one thing changed."""

    def model(sigma, y=None):
        center = numpyro.sample("mu", mu or dist.Normal(0.0, 5.0))
        spread = numpyro.sample("tau", tau or dist.HalfCauchy(5.0))
        if extra:
            numpyro.sample("nu", dist.Normal(0.0, 1.0))
        with numpyro.plate(plate, sigma.shape[0]):
            local = numpyro.sample("theta", dist.Normal(jnp.sum(center), spread))
            numpyro.sample("y", dist.Normal(local, sigma), obs=y)

    return model


@pytest.mark.fault(16)
@pytest.mark.parametrize(
    ("model", "message"),
    [
        (variant(mu=dist.Normal(0.0, 6.0)), "site 'mu': the log density at a fixed point was -2.5.*, is -2.7"),
        (variant(tau=dist.HalfNormal(5.0)), "site 'tau': distribution was HalfCauchy, is HalfNormal"),
        (variant(mu=dist.Uniform(-9.0, 9.0)), r"site 'mu': support was real, is interval"),
        (variant(mu=dist.Normal(0.0, 5.0).expand([3]).to_event(1)), r"site 'mu': shape was \(\), is \(3,\)"),
        (variant(extra=True), "site 'nu' is new"),
        (variant(plate="ward"), "plate 'school' is gone; plate 'ward' is new"),
        (lambda sigma, y=None: problems.eight_schools(sigma[:7], None if y is None else y[:7]), "size was 8, is 7"),
        (problems.surgical, r"cannot be read with the arguments of training \(sigma, y\): TypeError"),
    ],
)
def test_another_model_is_refused_by_what_differs(saved, model, message):
    with pytest.raises(ValueError, match=f"was trained for another model: .*{message}"):
        hsbi.load(saved("LF, factorized")[1], model)


@pytest.mark.slow
def test_another_constant_of_a_simulator_is_refused(saved):
    def other(times, scale=1.0, y=None):
        growth(times + 1.0, scale, y)

    with pytest.raises(ValueError, match="site 'y': the log density at a fixed point was"):
        hsbi.load(saved("LF, joint")[1], other)


def test_an_estimator_that_is_not_trained_is_not_saved(tmp_path):
    with pytest.raises(ValueError, match="no trained posterior yet"):
        hsbi.LF(problems.eight_schools, num_simulations=10, progress=False).save(tmp_path / "x.hsbi")
    assert list(tmp_path.iterdir()) == []


def change(path, edit):
    """Change facts and arrays and write them with correct checksums, as someone else might."""
    facts, arrays = read_archive(path, "estimator", 1)
    edit(facts, arrays)
    write_archive(path, "estimator", 1, facts, arrays)


def find(tree, tag):
    """Give the first object of a class in the JSON."""
    if isinstance(tree, dict):
        if tree.get("$") == tag:
            return tree
        tree = list(tree.values())
    found = [find(item, tag) for item in tree] if isinstance(tree, list) else []
    return next((item for item in found if item is not None), None)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda f, a: find(f, "Weights").update({"$": "Popen"}), "no 'Popen' in this version of hsbi"),
        (lambda f, a: find(f, "Weights")["items"].update(extra=1), r"Weights has other fields .*\(extra\)"),
        (lambda f, a: find(f, "Posterior")["items"].pop("view"), r"Posterior has other fields .*\(view\)"),
        (lambda f, a: find(f, "array").update(name="999"), "array 999 is absent"),
        (lambda f, a: f.update({"class": "NPE"}), "'NPE'"),
        (lambda f, a: f["settings"].pop("num_samples"), r"its settings are other ones .*\(num_samples\)"),
        (lambda f, a: f["state"].update(more=1), r"its state are other ones .*\(more\)"),
        (lambda f, a: f.update(fingerprint="0"), "does not have the fingerprint"),
        (lambda f, a: f["settings"].update(num_samples=-1), "num_samples is -1"),
        (lambda f, a: f.pop("ledger"), "'ledger'"),
        (lambda f, a: a.update({k: v.astype(np.float64) for k, v in a.items()}), "need JAX's setting jax_enable_x64"),
    ],
)
def test_contents_that_do_not_fit_are_refused(schools_file, edit, message):
    change(schools_file, edit)
    with pytest.raises(ValueError, match=f"cannot be rebuilt: .*{message}.*It was saved with .*'jax'"):
        hsbi.load(schools_file, problems.eight_schools)


def test_weights_of_another_shape_are_refused(schools_file):
    def widen(facts, arrays):
        name, kernel = next((name, array) for name, array in arrays.items() if array.shape == (16, 16))
        arrays[name] = np.concatenate([kernel, kernel])

    change(schools_file, widen)
    with pytest.raises(ValueError, match="does not fit the networks of this version of hsbi"):
        hsbi.load(schools_file, problems.eight_schools)


@pytest.mark.fault(15)
def test_damaged_newer_and_foreign_files_are_refused(schools_file, tmp_path):
    content = schools_file.read_bytes()
    schools_file.write_bytes(content[:-100])
    with pytest.raises(ValueError, match="truncated or damaged"):
        hsbi.load(schools_file, problems.eight_schools)
    schools_file.write_bytes(content)
    facts, arrays = read_archive(schools_file, "estimator", 1)
    write_archive(schools_file, "estimator", 2, facts, arrays)
    with pytest.raises(ValueError, match=r"has version 2 of the format.*Load it with a newer hsbi"):
        hsbi.load(schools_file, problems.eight_schools)
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("manifest.json", json.dumps({"name": "something else"}))
    with pytest.raises(ValueError, match="not one that hsbi wrote"):
        hsbi.load(tmp_path / "other.zip", problems.eight_schools)


@pytest.mark.fault(15)
def test_no_truncation_or_flipped_bit_loads_wrong_numbers(schools_file):
    original = schools_file.read_bytes()
    expected = read_archive(schools_file, "estimator", 1)
    # Where a zip describes its members, at its end, flips are most likely to mislead a reader.
    directory = original.rindex(b"PK\x05\x06") - 20_000
    choose = random.Random(0)
    damage = [("cut", choose.randrange(len(original))) for _ in range(100)]
    damage += [("flip", choose.randrange(8 * len(original))) for _ in range(100)]
    damage += [("flip", choose.randrange(8 * directory, 8 * len(original))) for _ in range(100)]
    harmless = 0
    for kind, place in damage:
        content = bytearray(original[:place] if kind == "cut" else original)
        if kind == "flip":
            content[place // 8] ^= 1 << (place % 8)
        schools_file.write_bytes(content)
        try:
            facts, arrays = read_archive(schools_file, "estimator", 1)
        except ValueError:
            with pytest.raises(ValueError, match=r"damaged|no zip archive"):
                hsbi.load(schools_file, problems.eight_schools)
            continue
        # `load` computes from these alone.
        assert facts == expected[0]
        assert list(arrays) == list(expected[1])
        assert all(arrays[name].tobytes() == value.tobytes() for name, value in expected[1].items())
        harmless += 1
    assert 0 < harmless < 100


class Settings:
    """An argument of a kind that no file can hold."""


def test_arguments_that_cannot_be_stored_are_left_out(saved, tmp_path):
    estimator = copy.copy(saved("LF, factorized")[0])
    program = estimator._program
    estimator._program = dataclasses.replace(program, arguments={**program.arguments, "settings": Settings()})
    estimator.save(tmp_path / "x.hsbi")
    facts, _ = read_archive(tmp_path / "x.hsbi", "estimator", 1)
    assert facts["arguments"] is None
    assert "Settings cannot be stored" in facts["without_arguments"]
    loaded = hsbi.load(tmp_path / "x.hsbi", schools, progress=False)
    ours, theirs = (each.sample(KEY, SIGMA, y=Y) for each in (loaded, estimator))
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
    # Another model is then found when its arguments are known.
    other = hsbi.load(tmp_path / "x.hsbi", variant(extra=True), progress=False)
    with pytest.raises(ValueError, match="another model than the one trained: 'nu' differs"):
        other.sample(KEY, SIGMA, y=Y)


def test_a_model_that_cannot_do_without_its_data_is_saved_without_arguments(saved, tmp_path):
    estimator = copy.copy(saved("LF, factorized")[0])

    def picky(sigma, y=None):
        if y is not None and not np.array_equal(y, Y):
            raise RuntimeError("not my data")
        problems.eight_schools(sigma, y)

    estimator._program = dataclasses.replace(estimator._program, model=picky)
    estimator.save(tmp_path / "x.hsbi")
    facts, _ = read_archive(tmp_path / "x.hsbi", "estimator", 1)
    assert facts["without_arguments"] == "without its data the model raised RuntimeError: not my data"
    assert hsbi.load(tmp_path / "x.hsbi", picky, progress=False).num_samples == 11


@pytest.mark.slow
def test_another_process_draws_the_same(saved, tmp_path):
    estimator, path = saved("LF, factorized")
    code = (
        "import sys, jax, numpy as np, hsbi\n"
        "from tests.inference import problems as p\n"
        "lf = hsbi.load(sys.argv[1], p.eight_schools)\n"
        "draws = lf.sample(jax.random.key(7), p.SCHOOLS_SIGMA, y=p.SCHOOLS_Y)\n"
        "np.savez(sys.argv[2], **draws)\n"
    )
    out = tmp_path / "draws.npz"
    subprocess.run([sys.executable, "-c", code, path, out], cwd=Path(__file__).parents[2], check=True)
    theirs = np.load(out)
    for name, value in estimator.sample(KEY, SIGMA, y=Y).items():
        assert theirs[name].tobytes() == np.asarray(value).tobytes()
