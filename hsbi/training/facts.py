"""Say in words how two sets of facts differ."""

import dataclasses
from collections.abc import Mapping
from typing import Any

Facts = Mapping[str, Mapping[str, Any]]
"""Facts in groups: the name of a thing, then the name of each of its properties."""


def flatten_config(config: Any) -> dict[str, Any]:
    """Give the fields of a dataclass by name, those of dataclasses inside it by a dotted name."""
    flat: dict[str, Any] = {"kind": type(config).__name__}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            flat |= {f"{field.name}.{name}": inner for name, inner in flatten_config(value).items() if name != "kind"}
        else:
            flat[field.name] = value
    return flat


def list_differences(before: Facts, now: Facts) -> list[str]:
    """List what differs, one phrase each; nothing if the facts are equal."""
    found: list[str] = []
    for name in (*before, *(name for name in now if name not in before)):
        if name not in now:
            found.append(f"{name} is gone")
        elif name not in before:
            found.append(f"{name} is new")
        else:
            old, new = before[name], now[name]
            for key in (*old, *(key for key in new if key not in old)):
                if key not in old or key not in new or _plain(old[key]) != _plain(new[key]):
                    found.append(f"{name}: {key} was {_show(old, key)}, is {_show(new, key)}")
    return found


def _plain(value: Any) -> Any:
    """Make no difference between tuples and lists, which JSON does not tell apart."""
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


def _show(facts: Mapping[str, Any], key: str) -> str:
    if key not in facts:
        return "absent"
    value = tuple(facts[key]) if isinstance(facts[key], list) else facts[key]
    return str(value) or "empty"
