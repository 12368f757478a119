"""Cost of `hsbi.check` beside that of training, and its report, on Gaussian Linear.

Trains a posterior, checks it with and without real simulations, prints times, reports and the ledger, and writes the
figure and the page of the second report where asked.
"""

import argparse
import resource
import time

import jax
import jax.numpy as jnp

import hsbi
from hsbi.bench.tasks import gaussian_linear


def main() -> None:
    """Train, check and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=20)
    parser.add_argument("--simulations", type=int, default=5_000)
    parser.add_argument("--check-simulations", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--figure", help="where to save the figure")
    parser.add_argument("--page", help="where to save the page")
    options = parser.parse_args()
    data_key, run_key, *check_keys = jax.random.split(jax.random.key(options.seed), 4)
    _, y = gaussian_linear.draw(data_key, options.sites)
    lf = hsbi.LF(gaussian_linear.model, num_simulations=options.simulations, progress=False)
    started = time.perf_counter()
    lf.run(run_key, options.sites, y=jnp.asarray(y))
    print(f"training and draws: {time.perf_counter() - started:.0f} s, peak memory {_memory():.1f} GB")
    report = None
    for key, budget in zip(check_keys, (0, options.check_simulations), strict=True):
        started = time.perf_counter()
        report = hsbi.check(lf, key, num_simulations=budget)
        print(f"\ncheck: {time.perf_counter() - started:.0f} s, peak memory {_memory():.1f} GB\n{report}", flush=True)
    print(f"\n{lf.ledger}")
    assert report is not None
    if options.figure:
        report.plot().savefig(options.figure, dpi=110)
    if options.page:
        report.to_html(options.page)


def _memory() -> float:
    """Give the most memory that the process has held, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    main()
