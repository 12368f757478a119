"""Every fault that simulations and training must survive is on the docs page and has a test."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "simulations.md"
# The numbers that tests are marked with, and the rows of the page.
FAULTS = {
    1: "The simulator raises in some calls",
    2: "It raises on the first call",
    3: "Some outputs are NaN or infinite",
    4: "Every output is NaN or infinite",
    5: "An output has the wrong shape",
    6: "Outputs are not single-precision floats",
    7: "A count is negative or fractional",
    8: "A call hangs",
    9: "A worker is killed",
    10: "The simulator, or what it raises, cannot be pickled",
    11: "The run is killed with `kill -9`",
    12: "Ctrl-C",
    13: "The disk is full",
    14: "A file of the store is damaged",
    15: "A saved estimator is damaged, newer or foreign",
    16: "Another model, key or argument meets a store or an estimator",
    22: "Prior draws are not finite",
    23: "Training is killed with `kill -9`",
    24: "The loss becomes NaN",
    26: "Two processes fill one store",
    27: "Home is read-only, there is no network and no GPU",
}


def marked_faults() -> dict[int, list[str]]:
    """Give the tests marked with each fault."""
    found: dict[int, list[str]] = {}
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            for decorator in getattr(node, "decorator_list", ()):
                match = re.fullmatch(r"pytest\.mark\.fault\((\d+)\)", ast.unparse(decorator))
                if match:
                    found.setdefault(int(match[1]), []).append(f"{path.stem}::{node.name}")  # pyright: ignore
    return found


def test_every_fault_has_a_test():
    assert marked_faults().keys() == FAULTS.keys()


def test_every_fault_is_on_the_page():
    section = PAGE.read_text().split("## What happens when")[1].split("\n## ")[0]
    rows = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("|")]
    # The first two lines are the table's head.
    assert rows[2:] == list(FAULTS.values())
