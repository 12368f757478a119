"""A run to be killed: `python -m tests.simulation.run_store FOLDER WORKERS NUMBER SECONDS [OUTPUT]`."""

import sys

import numpy as np

from hsbi.model.simulate import simulate_sites
from hsbi.simulation.execution import Execution
from hsbi.simulation.shelf import Shelf
from tests.simulation.conftest import KEY
from tests.simulation.programs import switched_program
from tests.simulation.simulators import Switch


def main() -> None:
    folder, workers, number, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    switch = Switch()
    switch.set("slow", seconds=seconds)
    program = switched_program(switch)
    shelf = Shelf(folder, program, KEY)
    rows = simulate_sites(program, KEY, number, caller=Execution(workers=workers), shelf=shelf)
    if len(sys.argv) > 5:
        np.savez(
            sys.argv[5], **{name: np.asarray(value) for name, value in {**rows.values, **rows.observations}.items()}
        )


if __name__ == "__main__":
    main()
