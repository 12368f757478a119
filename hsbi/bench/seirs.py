"""Accuracy on a seasonal epidemic, against its exact posterior: few sites, many, missing counts and other schedules.

One posterior is trained for data sets of `--sites` sites with schedules of their own, or taken from a file.
"""

import argparse
import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy import stats

from hsbi.bench.tasks import seirs

CONTACT_RATES = (0.35, 0.55, 0.8)
_HEADER = "beta0   exact posterior     beta0: mean     sd   amplitudes: mean  worst     sd"


def compare(samples: Mapping[str, Array], exact: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> list[float]:
    """Give errors of means in exact sds and ratios of sds: of the contact rate, then over amplitudes.

    Returns:
        Signed error and ratio of the contact rate; mean and largest error and mean ratio of amplitudes.
    """
    mean, sd = exact["beta0"]
    rate = np.asarray(samples["beta0"], float)
    means, sds = exact["amplitude"]
    amplitude = np.asarray(samples["amplitude"], float)
    errors = np.abs(amplitude.mean(0) - means) / sds
    return [
        float((rate.mean() - mean) / sd),
        float(rate.std() / sd),
        float(errors.mean()),
        float(errors.max()),
        float(np.mean(amplitude.std(0) / sds)),
    ]


def design(num_sites: tuple[int, int], num_times: tuple[int, int]):
    """Give a function that draws schedules of a random number of sites and, per data set, of times.

    Schedules with fewer times than the most are padded: counts at the other times are missing.
    """

    def draw(key: Array) -> dict[str, Array]:
        size_key, count_key, time_key, order_key = jax.random.split(key, 4)
        sites = int(jax.random.randint(size_key, (), num_sites[0], num_sites[1] + 1))
        count = int(jax.random.randint(count_key, (), num_times[0], num_times[1] + 1))
        times = jnp.asarray(seirs.draw_times(time_key, sites, num_times[1]))
        if num_times[0] == num_times[1]:
            return {"times": times}
        kept = jax.random.permutation(order_key, num_times[1])[:count]
        return {"times": times, "y": jnp.full(times.shape, jnp.nan).at[:, kept].set(0.0)}

    return draw


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, nargs="+", default=[2], help="trained for: the number, or fewest and most")
    parser.add_argument(
        "--times", type=int, nargs="+", default=[12], help="trained for: the number, or fewest and most"
    )
    parser.add_argument("--missing", type=float, default=0.0, help="trained for: share of counts missing at random")
    parser.add_argument("--answer", type=int, nargs="+", default=None, help="numbers of sites to answer for")
    parser.add_argument("--schedule", type=int, nargs="+", default=[12], help="numbers of times to answer for")
    parser.add_argument("--drop", type=float, default=0.0, help="share of counts dropped from the data")
    parser.add_argument("--empty", action="store_true", help="drop all counts of the first site as well")
    parser.add_argument("--budget", type=int, default=20_000)
    parser.add_argument("--draws", type=int, default=1_000)
    parser.add_argument("--repeats", type=int, default=1, help="data sets for each contact rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=None, help="steps of training of the posterior's networks")
    parser.add_argument("--no-refine", action="store_true", help="leave the draws to the networks alone")
    parser.add_argument("--save", default=None, help="a file to write the trained estimator to")
    parser.add_argument("--load", default=None, help="a file to take it from, instead of training")
    return parser.parse_args()


def train(options: argparse.Namespace, key: Array) -> Any:
    """Train an estimator as the command line says, or load one."""
    import hsbi

    if options.load is not None:
        return hsbi.load(options.load, seirs.model)
    sites, times = ((numbers[0], numbers[-1]) for numbers in (options.sites, options.times))
    config = hsbi.FactorizedConfig(refine=not options.no_refine)
    if options.steps is not None:
        plan = hsbi.FitConfig(num_steps=options.steps, epoch_steps=min(250, options.steps), patience=None)
        config = dataclasses.replace(config, head=plan, flow=plan)
    lf = hsbi.LF(
        seirs.model,
        num_simulations=options.budget,
        num_samples=options.draws,
        design=design(sites, times),
        missing=options.missing,
        posterior_config=config,
    )
    lf.simulate(jax.random.fold_in(key, 0))
    lf.fit(jax.random.fold_in(key, 1))
    print("seconds:", ", ".join(f"{name} {value:.1f}" for name, value in lf.timings.items()))
    if options.save is not None:
        lf.save(options.save)
    return lf


def main() -> None:
    """Print the errors on data sets with known contact rates."""
    options = parse()
    key = jax.random.key(options.seed)
    lf = train(options, key)
    print(lf)
    print(lf.ledger, flush=True)
    number = 0
    for count, length in itertools.product(options.answer or sorted(set(options.sites)), options.schedule):
        rows = []
        lack = f", {options.drop:.0%} of the counts missing" + (", the first site empty" if options.empty else "")
        print(f"\n{count} sites, {length} times{lack}\n{_HEADER}")
        for beta0 in CONTACT_RATES * options.repeats:
            number += 1
            data_key = jax.random.fold_in(jax.random.key(2026), number)
            schedule = seirs.draw_times(jax.random.fold_in(data_key, 0), count, length)
            _, y = seirs.draw(jax.random.fold_in(data_key, 1), schedule, beta0=beta0)
            dropped = np.asarray(jax.random.uniform(jax.random.fold_in(data_key, 2), y.shape) < options.drop)
            dropped = dropped | (options.empty & (np.arange(count) == 0)[:, None])
            y = np.where(dropped, np.nan, y.astype(float))
            own = jax.random.fold_in(key, 1 + number)
            samples = lf.sample(own, jnp.asarray(schedule), y=jnp.asarray(y), num_samples=options.draws)
            exact = seirs.solve(schedule, y).moments()
            rows.append(compare(samples, exact))
            mean, sd = exact["beta0"]
            print(f"{beta0:5.2f}   {mean:.4f} +- {sd:.4f}   {_row(rows[-1])}   {_efficiency(lf)}", end="")
            print(_describe_empty(samples, dropped) + f", {lf.timings['sample']:.0f} s", flush=True)
        print(f"mean of absolute values     {_row(np.mean(np.abs(rows), axis=0))}")


def _describe_empty(samples: Mapping[str, Array], dropped: np.ndarray) -> str:
    """Compare the amplitude of a first site without data with its prior, a uniform distribution."""
    if not dropped[0].all():
        return ""
    low, high = seirs.AMPLITUDE_RANGE
    drawn = np.asarray(samples["amplitude"][:, 0], float)
    return f", KS p of the empty site {stats.kstest(drawn, 'uniform', (low, high - low)).pvalue:.3f}"


def _efficiency(lf: Any) -> str:
    found = lf.efficiency
    return "" if found is None else f"efficiency {float(found.globals):.2f}, {float(found.locals):.2f}"


def _row(values: list[float] | np.ndarray) -> str:
    error, ratio, local, worst, local_ratio = values
    return f"{error:+10.3f}{ratio:8.2f}{local:18.3f}{worst:7.2f}{local_ratio:7.2f}"


if __name__ == "__main__":
    main()
