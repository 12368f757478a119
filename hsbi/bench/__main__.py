"""The benchmark's command line: `run` one cell, `sweep` the plan, print a `table`, draw a `plot`."""

import argparse

from hsbi.bench.methods import METHODS, SCALES, effective_scale
from hsbi.bench.plot import DEFAULT_METRICS, plot_rows
from hsbi.bench.rows import Cell, read_rows
from hsbi.bench.runner import run
from hsbi.bench.sweep import sweep
from hsbi.bench.table import LABELS, make_table
from hsbi.bench.tasks import TASKS


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m hsbi.bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run", help="train a method for a task and write a row per observation")
    one.add_argument("--task", required=True, choices=list(TASKS))
    one.add_argument("--method", required=True, choices=list(METHODS))
    one.add_argument("--scale", default="full", choices=SCALES, help="settings; `small` is for transformers on a CPU")
    one.add_argument("--sites", type=int, default=50)
    one.add_argument("--budget", type=int, default=5_000)
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--draws", type=int, default=1_000)
    one.add_argument("--lc2st", type=int, default=0, metavar="SETS", help="data sets for l-C2ST; 0 leaves it out")
    many = commands.add_parser("sweep", help="run the planned cells until the time is over")
    many.add_argument("--minutes", type=float, required=True)
    for command in (one, many):
        command.add_argument("--observations", type=int, default=10)
        command.add_argument("--out", required=True, help="the folder of the rows")
    table = commands.add_parser("table", help="print a Markdown table of the rows in a folder")
    plot = commands.add_parser("plot", help="draw metrics against budget and against sites")
    plot.add_argument("--metrics", nargs="+", default=list(DEFAULT_METRICS), choices=list(LABELS))
    plot.add_argument("--out", help="the folder of the figures; that of the rows by default")
    for command in (table, plot):
        command.add_argument("folder", help="the folder of the rows")
    return parser.parse_args()


def main() -> None:
    """Run the command."""
    options = _parse()
    if options.command == "run":
        names = ("task", "method", "sites", "budget", "seed")
        scale = effective_scale(options.method, options.scale)
        cell = Cell(scale=scale, **{name: getattr(options, name) for name in names})
        paths = run(
            options.out,
            cell,
            num_observations=options.observations,
            num_draws=options.draws,
            lc2st_sets=options.lc2st,
        )
        print(f"{cell}: {len(paths)} rows written, {options.observations - len(paths)} were there")
    elif options.command == "sweep":
        left = sweep(options.out, minutes=options.minutes, num_observations=options.observations)
        print(f"{len(left)} cells left to run" + "".join(f"\n{cell}" for cell in left))
    elif options.command == "plot":
        for path in plot_rows(read_rows(options.folder), options.out or options.folder, metrics=options.metrics):
            print(path)
    else:
        print(make_table(read_rows(options.folder)))


if __name__ == "__main__":
    main()
