"""Write objects as JSON with arrays beside it, and rebuild them from a fixed list of classes; no code is stored."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

# The key that tells a described object from a plain JSON value.
_TAG = "$"


class Encoder:
    """Turn objects into JSON, and keep their arrays.

    Known are plain values, lists, tuples, dicts with string keys, arrays of numbers, and the dataclasses and named
    tuples of a given list. An array that occurs twice is kept once.

    Attributes:
        arrays: The arrays met so far, by the name that stands for them in the JSON.
    """

    def __init__(self, classes: Mapping[str, type]) -> None:
        """Start with no arrays.

        Args:
            classes: The classes that may occur, by the name that stands for them.
        """
        self.arrays: dict[str, np.ndarray] = {}
        self._names = {kind: name for name, kind in classes.items()}
        # Arrays are kept alive while their identity stands for them.
        self._seen: dict[int, tuple[str, Any]] = {}

    def encode(self, value: Any) -> Any:
        """Give the JSON of a value.

        Raises:
            TypeError: If the value is of no known kind.
        """
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {_TAG: "float", "value": str(value)}
        if type(value) is list:
            return [self.encode(item) for item in value]
        if type(value) is tuple:
            return {_TAG: "tuple", "items": [self.encode(item) for item in value]}
        if isinstance(value, dict) and all(isinstance(key, str) for key in value):
            return {_TAG: "dict", "items": {key: self.encode(item) for key, item in value.items()}}
        if isinstance(value, np.ndarray | np.generic | Array):
            return self._encode_array(value)
        if type(value) in self._names:
            items = {field: self.encode(getattr(value, field)) for field in _fields(type(value))}
            return {_TAG: self._names[type(value)], "items": items}
        raise TypeError(f"a value of type {type(value).__module__}.{type(value).__qualname__} cannot be stored")

    def _encode_array(self, value: Any) -> dict[str, Any]:
        if id(value) in self._seen:
            return {_TAG: "array", "name": self._seen[id(value)][0], "kind": _kind(value)}
        if isinstance(value, Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            raise TypeError("a random key cannot be stored")
        array = np.asarray(value)
        if array.dtype.kind not in "biufc":
            raise TypeError(f"an array of type {array.dtype} cannot be stored")
        name = str(len(self.arrays))
        self.arrays[name] = array
        self._seen[id(value)] = (name, value)
        return {_TAG: "array", "name": name, "kind": _kind(value)}


class Decoder:
    """Turn JSON back into objects; the inverse of `Encoder`."""

    def __init__(self, classes: Mapping[str, type], arrays: Mapping[str, np.ndarray]) -> None:
        """Take the arrays.

        Args:
            classes: The classes that may occur, by the name that stands for them. No other is ever made.
            arrays: The arrays, by name.
        """
        self._classes = classes
        self._arrays = arrays
        self._made: dict[tuple[str, str], Any] = {}

    def decode(self, json: Any) -> Any:
        """Rebuild a value.

        Raises:
            ValueError: If the JSON names an unknown class, other fields than the class has, or an absent array.
        """
        if isinstance(json, list):
            return [self.decode(item) for item in json]
        if not isinstance(json, dict):
            return json
        tag = str(json.get(_TAG))
        if tag == "float":
            return float(json["value"])
        if tag == "array":
            return self._decode_array(json["name"], json["kind"])
        if tag == "tuple":
            return tuple(self.decode(item) for item in json["items"])
        if tag == "dict":
            return {key: self.decode(item) for key, item in json["items"].items()}
        if tag not in self._classes:
            raise ValueError(f"there is no {tag!r} in this version of hsbi")
        return self._build(self._classes[tag], tag, json["items"])

    def _build(self, kind: Any, tag: str, items: Mapping[str, Any]) -> Any:
        expected = _fields(kind)
        differ = sorted(set(expected) ^ set(items))
        if differ:
            raise ValueError(f"{tag} has other fields in this version of hsbi ({', '.join(differ)})")
        return kind(**{field: self.decode(items[field]) for field in expected})

    def _decode_array(self, name: str, kind: str) -> Any:
        if name not in self._arrays:
            raise ValueError(f"array {name} is absent")
        if (name, kind) not in self._made:
            self._made[name, kind] = _make(self._arrays[name], kind)
        return self._made[name, kind]


def _fields(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else kind._fields


def _kind(value: Any) -> str:
    return "device" if isinstance(value, Array) else "scalar" if isinstance(value, np.generic) else "host"


def _make(array: np.ndarray, kind: str) -> Any:
    if kind == "host":
        return array
    if kind == "scalar":
        return array[()]
    if jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype:
        raise ValueError(f"it has arrays of type {array.dtype}, which need JAX's setting jax_enable_x64")
    return jnp.array(array)
