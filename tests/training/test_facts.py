import dataclasses

from hsbi.training import FitConfig
from hsbi.training.facts import flatten_config, list_differences


@dataclasses.dataclass(frozen=True)
class Outer:
    width: int = 3
    fit: FitConfig = FitConfig()  # noqa: RUF009


def test_equal_facts_have_no_differences():
    # JSON gives tuples back as lists.
    assert list_differences({"a": {"x": (1, (2, 3)), "y": None}}, {"a": {"x": [1, [2, 3]], "y": None}}) == []


def test_differences_name_the_thing_the_property_and_both_values():
    before = {"site 'a'": {"shape": [3], "support": "real"}, "site 'b'": {"shape": []}}
    now = {"site 'a'": {"shape": (4,), "support": ""}, "site 'c'": {"shape": ()}}
    assert list_differences(before, now) == [
        "site 'a': shape was (3,), is (4,)",
        "site 'a': support was real, is empty",
        "site 'b' is gone",
        "site 'c' is new",
    ]
    assert list_differences({"a": {"x": 1}}, {"a": {"y": 2}}) == [
        "a: x was 1, is absent",
        "a: y was absent, is 2",
    ]


def test_configs_are_flattened_by_dotted_names():
    flat = flatten_config(Outer(fit=FitConfig(num_steps=7)))
    assert (flat["kind"], flat["width"], flat["fit.num_steps"]) == ("Outer", 3, 7)
    assert len(flat) == 2 + len(dataclasses.fields(FitConfig))
