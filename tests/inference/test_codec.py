"""Objects come back from JSON and arrays as they were, and nothing else is ever made."""

import dataclasses
import json
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hsbi.inference.codec import Decoder, Encoder


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    inner: Any
    size: tuple[int, ...] = ()


class Pair(NamedTuple):
    left: Any
    right: Any


CLASSES: dict[str, type] = {"Outer": Outer, "Pair": Pair}


def there_and_back(value):
    encoder = Encoder(CLASSES)
    text = json.dumps(encoder.encode(value), allow_nan=False)
    return Decoder(CLASSES, encoder.arrays).decode(json.loads(text)), encoder.arrays


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 3, "a", 0.1, -math.inf),
        [1, (2, [3.5, ()]), {}],
        {"a": (1,), "$": "tuple"},
        Outer(name="x", inner=Pair((1, 2), None), size=(3, 4)),
    ],
)
def test_plain_values_and_known_classes_come_back(value):
    back, arrays = there_and_back(value)
    assert back == value
    assert type(back) is type(value)
    assert arrays == {}


def test_not_a_number_comes_back():
    assert math.isnan(there_and_back(math.nan)[0])


@pytest.mark.parametrize(
    "value", [jnp.arange(6, dtype=jnp.int32).reshape(2, 3), np.arange(3.0), np.float64(0.1), np.zeros((0, 2), bool)]
)
def test_arrays_keep_their_kind_type_and_shape(value):
    back, _ = there_and_back(Pair(value, 1))
    assert type(back.left) is type(value)
    assert (back.left.dtype, back.left.shape) == (value.dtype, value.shape)
    np.testing.assert_array_equal(back.left, value)


def test_an_array_that_occurs_twice_is_kept_once():
    array = jnp.arange(3.0)
    back, arrays = there_and_back(Pair({"a": array}, [array, jnp.arange(3.0)]))
    assert len(arrays) == 2
    assert back.left["a"] is back.right[0]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), "a value of type builtins.object cannot be stored"),
        ({1: 2}, "a value of type builtins.dict cannot be stored"),
        (jax.random.key(0), "a random key cannot be stored"),
        (np.array(["a"]), "an array of type <U1 cannot be stored"),
        (len, "builtin_function_or_method cannot be stored"),
    ],
)
def test_what_is_not_known_is_not_stored(value, message):
    with pytest.raises(TypeError, match=message):
        Encoder(CLASSES).encode([value])


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ({"$": "Popen", "items": {"args": "true"}}, "no 'Popen' in this version"),
        ({"items": {}}, "no 'None' in this version"),
        ({"$": "Pair", "items": {"left": 1}}, r"Pair has other fields .*\(right\)"),
        ({"$": "Outer", "items": {"name": 1, "inner": 2, "size": 3, "more": 4}}, r"Outer has other fields .*\(more\)"),
        ({"$": "array", "name": "7", "kind": "host"}, "array 7 is absent"),
        ({"$": "array", "name": "0", "kind": "device"}, "arrays of type float64, which need JAX's setting"),
    ],
)
def test_descriptions_that_do_not_fit_are_refused(described, message):
    with pytest.raises(ValueError, match=message):
        Decoder(CLASSES, {"0": np.arange(3.0)}).decode([described])
