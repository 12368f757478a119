"""A run to be killed: `python -m tests.simulation.run_store FOLDER WORKERS NUMBER SECONDS OUTPUT`."""

import sys
from pathlib import Path

import numpy as np

from hsbi.model.simulate import simulate_sites
from hsbi.simulation import shelf
from hsbi.simulation.execution import Execution
from tests.simulation.conftest import KEY
from tests.simulation.programs import switched_program
from tests.simulation.simulators import Switch


def main() -> None:
    folder, workers, number, seconds, output = sys.argv[1:]
    shelf._FLUSH_SECONDS = 0.3
    switch = Switch()
    switch.set("slow", seconds=float(seconds), tally=Path(output).with_suffix(".tally"))
    program = switched_program(switch)
    rows = simulate_sites(
        program, KEY, int(number), caller=Execution(workers=int(workers)), shelf=shelf.Shelf(folder, program, KEY)
    )
    np.savez(output, **rows.values, **rows.observations)


if __name__ == "__main__":
    main()
