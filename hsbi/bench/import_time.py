"""Compare the time of `import hsbi` with that of the libraries it stands on.

Run as `python -m hsbi.bench.import_time`; the exit status is 1 when hsbi is more than `MAX_RATIO` times slower.
"""

import statistics
import subprocess
import sys
import time

BASELINE = "import numpyro, arviz"
SUBJECT = "import hsbi"
# Resolves every lazily imported public name: what a script that uses all of them pays.
EVERYTHING = "from hsbi import *"
MAX_RATIO = 1.2
NUM_REPEATS = 5


def time_statement(statement: str) -> float:
    """Return the seconds that a fresh interpreter takes to start and run a statement.

    Raises:
        RuntimeError: If the statement fails.
    """
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", statement], capture_output=True, text=True, check=False)
    elapsed = time.perf_counter() - start
    if done.returncode != 0:
        raise RuntimeError(f"`{statement}` exited with status {done.returncode}:\n{done.stderr}")
    return elapsed


def measure(statements: tuple[str, ...], num_repeats: int) -> dict[str, float]:
    """Return the median seconds of each statement.

    The statements take turns, so that a slow spell of the machine falls on all of them alike. A first round that is
    not counted fills the file cache and writes the bytecode.
    """
    rounds = [{text: time_statement(text) for text in statements} for _ in range(num_repeats + 1)]
    return {text: statistics.median(seconds[text] for seconds in rounds[1:]) for text in statements}


def main() -> int:
    """Print the comparison and return the exit status."""
    medians = measure((BASELINE, SUBJECT, EVERYTHING), NUM_REPEATS)
    for statement, seconds in medians.items():
        print(f"{statement:<24}{seconds:7.3f} s  {seconds / medians[BASELINE]:5.2f} x")
    ratio = medians[SUBJECT] / medians[BASELINE]
    verdict = "within" if ratio <= MAX_RATIO else "above"
    print(f"`{SUBJECT}` takes {ratio:.2f} times `{BASELINE}`, {verdict} the limit of {MAX_RATIO}.")
    return int(ratio > MAX_RATIO)


if __name__ == "__main__":
    sys.exit(main())
