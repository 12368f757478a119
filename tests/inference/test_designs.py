"""Designs, padding, and what a posterior says of arguments it was not trained for."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import hsbi
from hsbi.inference.arrays import Design
from hsbi.inference.batch import hide
from hsbi.inference.designs import pool_designs

POINTS = 6


def curves(times, y=None, gain=1.0):
    level = numpyro.sample("level", dist.Normal(0.0, 1.0))
    with numpyro.plate("site", times.shape[0]):
        slope = numpyro.sample("slope", dist.Normal(level, 0.5))
        mean = gain * (level + slope)[:, None] * times if times.shape[0] else times
        numpyro.sample("y", dist.Normal(mean, 0.3).to_event(1), obs=y, infer={"inputs": times})


def design(key):
    size_key, time_key, gap_key = jax.random.split(key, 3)
    size = int(jax.random.randint(size_key, (), 2, 5))
    times = jnp.sort(jax.random.uniform(time_key, (size, POINTS)), axis=1)
    known = jax.random.uniform(gap_key, times.shape) > 0.3
    return {"times": times, "y": jnp.where(known, 0.0, jnp.nan)}


def test_pooled_designs_hold_every_draw():
    key = jax.random.key(3)
    program, groups = pool_designs(curves, design, key)
    drawn = [design(jax.random.fold_in(key, i)) for i in range(groups.size.shape[0])]
    assert program.num_sites == sum(each["times"].shape[0] for each in drawn)
    assert groups.site_range == (2, 4)
    for number in (0, 5, len(drawn) - 1):
        size = int(groups.size[number])
        own = groups.index[number]
        for name in ("times", "y"):
            np.testing.assert_array_equal(program.arguments[name][own[:size]], drawn[number][name])
        # Padding repeats a site of the same design, so that no other design leaks in.
        assert set(np.asarray(own[size:]).tolist()) <= {int(own[0])}


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda key: (jnp.zeros((3, 2)),), "expected a mapping of the model's arguments by name"),
        (lambda key: {"times": jnp.zeros((3, 2 + int(jax.random.key_data(key)[-1]) % 2))}, "entries per site in one"),
        (lambda key: {"times": jnp.zeros((3, 2)), "gain": float(jax.random.uniform(key))}, "'gain' differs between"),
        (
            lambda key: {
                "times": jnp.zeros((3, 2)),
                **({} if int(jax.random.key_data(key)[-1]) % 2 else {"gain": 2.0}),
            },
            "Give the same arguments in every draw",
        ),
    ],
)
def test_designs_that_do_not_fit_together_are_refused(wrong, text):
    with pytest.raises(ValueError, match=text):
        pool_designs(curves, wrong, jax.random.key(0), observed=("y",))


def test_design_without_arrays_is_refused():
    def plain(num_sites, y=None):
        with numpyro.plate("site", num_sites):
            numpyro.sample("y", dist.Normal(numpyro.sample("a", dist.Normal(0, 1)), 1.0), obs=y)

    with pytest.raises(ValueError, match="no argument of the design has one entry per site"):
        pool_designs(plain, lambda key: {"num_sites": 3}, jax.random.key(0), observed=("y",))


def test_settings_that_exclude_each_other_are_refused():
    with pytest.raises(ValueError, match="Both design and num_sites"):
        hsbi.LF(curves, num_simulations=10, design=design, num_sites=(2, 4))
    with pytest.raises(ValueError, match=r"missing is 1\.5, expected a share"):
        hsbi.LF(curves, num_simulations=10, missing=1.5)


def test_hidden_values_have_the_rates_asked_for():
    shapes = {"a": (40, 2, 5, 1), "b": (40, 1, 1, 3)}
    fixed = np.ones(shapes["a"], bool)
    fixed[:, 1] = False
    start = Design(jnp.zeros((40, 0)), {}, {"a": jnp.asarray(fixed)})
    found = jax.jit(jax.vmap(lambda key: hide(key, start, shapes, 0.6).masks))(jax.random.split(jax.random.key(0), 400))
    seen = {name: np.asarray(mask) for name, mask in found.items()}
    assert not seen["a"][:, :, 1].any()
    gone = ~np.any(seen["a"], axis=(2, 3, 4)) & ~np.any(seen["b"], axis=(2, 3, 4))
    # Whole sites go in half of the data sets, at a rate that is uniform up to 0.6. A site of 8 values that are hidden
    # singly is empty with probability rate^8, at most 0.002 on average.
    assert abs(gone.mean() - 0.15) < 0.03
    assert 0.4 < np.mean(gone.mean(axis=1) > 0.05) < 0.6
    present = ~gone
    single = 1 - np.sum(seen["a"][:, :, 0] * present[:, :, None, None]) / (5 * present.sum())
    # Uniform rates up to 0.6 have the mean 0.3 and a standard error of 0.17 / sqrt(400).
    assert abs(single - 0.3) < 0.035


def test_padding_keeps_every_entry():
    ragged = [np.array([1.0, 2.0, 3.0]), np.array([4.0]), np.zeros(0)]
    np.testing.assert_array_equal(hsbi.pad(ragged), [[1, 2, 3], [4, np.nan, np.nan], [np.nan] * 3])
    np.testing.assert_array_equal(hsbi.pad(ragged, fill=None), [[1, 2, 3], [4, 4, 4], [0, 0, 0]])
    assert hsbi.pad([np.ones((2, 5)), np.ones((4, 5))], length=7).shape == (2, 7, 5)


@pytest.mark.parametrize(
    ("ragged", "options", "text"),
    [
        ([], {}, "nothing to pad"),
        ([np.ones((2, 3)), np.ones((2, 4))], {}, "differ in the length of their first axis only"),
        ([np.ones(3)], {"length": 2}, "length is 2, but the longest site has 3"),
    ],
)
def test_what_cannot_be_padded_is_refused(ragged, options, text):
    with pytest.raises(ValueError, match=text):
        hsbi.pad(ragged, **options)
