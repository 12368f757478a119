# %% [markdown]
# # When did they expand? Twenty populations and a simulator that is not JAX
#
# Twenty populations expanded when the ice withdrew, all at one time `time` (generations ago); each has its own present
# `size` and grew by its own `ratio`. What is seen of a population is the site-frequency spectrum of ten people: how
# many mutations are carried by one copy in the sample, by two, and so on. The coalescent that links the two is run by
# [msprime](https://tskit.dev/msprime), which knows nothing of JAX and has no likelihood to offer.
#
# Simulations are run one population at a time in worker processes and are kept in a store as they are made. Kill the
# script whenever you like and start it again: what was simulated is not simulated again. `--kill-after 1000` does the
# killing for you.

# %%
import argparse
import os
import signal
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from matplotlib.ticker import LogLocator
from numpyro.distributions import constraints

import hsbi
from hsbi.diagnostics import sbc_ranks, uniformity

NUM_POPULATIONS = 20
# Mutations carried by 1, 2, 3-4, 5-8 and 9-19 of the 20 copies.
CLASSES = np.array([1, 2, 3, 5, 9]) - 1


def spectrum(rng, time, size, ratio):
    """Simulate the binned site-frequency spectrum of one population that grew by `ratio` to `size` at `time`."""
    import msprime

    demography = msprime.Demography()
    demography.add_population(initial_size=size)
    demography.add_population_parameters_change(time=time, initial_size=size / ratio)
    ancestry_seed, mutation_seed = rng.integers(1, 2**31, 2)
    trees = msprime.sim_ancestry(
        10, demography=demography, sequence_length=1e6, recombination_rate=1e-8, random_seed=ancestry_seed
    )
    trees = msprime.sim_mutations(trees, rate=1e-8, random_seed=mutation_seed)
    counts = trees.allele_frequency_spectrum(polarised=True, span_normalise=False)[1:-1]
    return np.add.reduceat(counts, CLASSES)


def populations(num_populations=NUM_POPULATIONS, y=None):
    time = numpyro.sample("time", dist.LogNormal(np.log(1_000.0), 0.7))
    with numpyro.plate("population", num_populations):
        size = numpyro.sample("size", dist.LogNormal(np.log(10_000.0), 0.5))
        ratio = numpyro.sample("ratio", dist.LogNormal(np.log(10.0), 0.5))
        simulator = hsbi.Simulator(
            spectrum, time, size, ratio, event_shape=(len(CLASSES),), support=constraints.nonnegative_integer, host=True
        )
        numpyro.sample("y", simulator, obs=y)


# %% [markdown]
# ## Running it


# %%
def read_options():
    parser = argparse.ArgumentParser(description="The time at which twenty populations expanded, by hsbi and msprime.")
    parser.add_argument("--out", type=Path, default=Path("outputs"), help="folder for the store and the picture")
    parser.add_argument("--simulations", type=int, default=6_000, help="single-population simulations")
    parser.add_argument("--workers", type=int, default=2, help="worker processes")
    parser.add_argument("--held-out", type=int, default=40, help="data sets that calibration is measured on")
    parser.add_argument("--kill-after", type=int, help="kill the script when this many simulations are stored")
    parser.add_argument("--smoke", action="store_true", help="a few simulations; the answer will be poor")
    return parser.parse_args()


def kill_after(store, number):
    """Give a progress callback that kills the process, as a power cut would, once that many simulations are stored."""

    class Bar:
        def update(self, done, note=""):
            stored = len(hsbi.Store(store)) if done >= number else 0
            if stored >= number:
                print(f"killed with {stored} simulations in the store", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)

        def close(self):
            pass

    return lambda name, total: Bar()


def simulate_truths(rng, number):
    """Draw held-out data sets from the prior by msprime itself: times `[n]`, spectra `[n, populations, classes]`."""
    times = np.exp(np.log(1_000.0) + 0.7 * rng.standard_normal(number))
    sizes = np.exp(np.log(10_000.0) + 0.5 * rng.standard_normal((number, NUM_POPULATIONS)))
    ratios = np.exp(np.log(10.0) + 0.5 * rng.standard_normal((number, NUM_POPULATIONS)))
    spectra = [
        [spectrum(rng, time, size, ratio) for size, ratio in zip(*row, strict=True)]
        for time, *row in zip(times, sizes, ratios, strict=True)
    ]
    return times, np.array(spectra)


def describe(test):
    """Say in words what the test of uniformity found."""
    verdict = "uniform" if test.shape == "uniform" else f"not uniform, the posterior is {test.shape}"
    return f"{verdict} (p = {float(test.p_value):.2f})"


def plot(path, truths, draws, ranks):
    """Draw the posterior of the time relative to the truth, and how its ranks are spread."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.2, 4.4), layout="constrained")
    low, middle, high = np.quantile(draws / truths[:, None], [0.05, 0.5, 0.95], axis=1)
    inside = (low <= 1.0) & (high >= 1.0)
    for mask, color, label in ((inside, "#0072B2", "hold the truth"), (~inside, "#D55E00", "do not")):
        left.vlines(truths[mask], low[mask], high[mask], color=color, linewidth=1.6, label=f"{mask.sum()} {label}")
        left.plot(truths[mask], middle[mask], "o", color=color, markersize=3)
    left.axhline(1.0, color="#8a8a8a", linewidth=1, zorder=0)
    left.set(xscale="log", xlabel="true time, generations ago", ylabel="posterior of the time / true time")
    # Room for the legend above the intervals.
    left.set_ylim(top=high.max() + 0.25 * (high.max() - low.min()))
    left.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    left.xaxis.set_major_formatter("{x:,.0f}")
    left.xaxis.set_minor_formatter("")
    left.legend(frameon=False, loc="upper left", title="90 % intervals", alignment="left")
    left.set_title(f"{len(truths)} held-out data sets of {NUM_POPULATIONS} populations", loc="left")
    grid = np.linspace(0.0, 1.0, 201)
    band = np.sqrt(np.log(2 / 0.05) / (2 * len(ranks)))
    right.fill_between(grid, grid - band, grid + band, color="#e6e6e6", label="95 % band of a calibrated posterior")
    right.plot(grid, grid, color="#8a8a8a", linewidth=1)
    steps = np.concatenate([[0.0], np.sort(ranks), [1.0]])
    shares = np.concatenate([np.arange(len(ranks) + 1) / len(ranks), [1.0]])
    right.step(steps, shares, where="post", color="#0072B2", linewidth=1.8)
    right.set(xlabel="rank of the true time in its posterior", ylabel="share of data sets", xlim=(0, 1), ylim=(0, 1))
    right.legend(frameon=False, loc="upper left")
    right.set_title("Calibration of the time", loc="left")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main():
    options = read_options()
    options.out.mkdir(parents=True, exist_ok=True)
    settings = {}
    if options.smoke:
        options.simulations, options.held_out = min(options.simulations, 200), 6
        brief = hsbi.FitConfig(num_steps=40, epoch_steps=20)
        settings = {
            "surrogate_config": hsbi.SurrogateConfig(width=8, depth=1, flow_depth=1, correction=brief, flow=brief),
            "posterior_config": hsbi.FactorizedConfig(
                width=8, depth=1, flow_depth=1, batch_size=32, num_ode_steps=4, head=brief, flow=brief
            ),
        }
    if options.kill_after is not None:
        settings["progress"] = kill_after(options.out / "populations", options.kill_after)
    print(hsbi.inspect(populations), end="\n\n")
    lf = hsbi.LF(
        populations,
        num_simulations=options.simulations,
        workers=options.workers,
        timeout=60.0,
        store=options.out / "populations",
        **settings,
    )
    lf.simulate(jax.random.key(0), NUM_POPULATIONS)
    print(f"{hsbi.Store(options.out / 'populations')}\n\nof these, simulated now: {lf.ledger['simulate']}\n")
    lf.fit(jax.random.key(1))

    # %% [markdown]
    # ## Calibration
    #
    # One training serves any data. Data sets are simulated anew from the prior, by msprime and not by the surrogate,
    # and the rank of the true time among its posterior draws must be uniform.

    # %%
    truths, spectra = simulate_truths(np.random.default_rng(2), options.held_out)
    draws = np.array(
        [lf.sample(jax.random.fold_in(jax.random.key(3), row), y=y)["time"] for row, y in enumerate(spectra)]
    )
    ranks = sbc_ranks(jax.random.key(4), truths, draws)
    inside = np.mean(np.abs(ranks - 0.5) <= 0.45)
    contraction = 1.0 - np.mean(np.log(draws).var(axis=1)) / 0.7**2
    print(f"90 % intervals of the time hold the truth in {inside:.0%} of {options.held_out} held-out data sets.")
    print(f"Ranks of the true time: {describe(uniformity(ranks))}.")
    print(f"The posterior's variance of log time is {1.0 - contraction:.1%} of the prior's.")
    picture = options.out / "populations.png"
    plot(picture, truths, draws, ranks)
    print("\nseconds: " + ", ".join(f"{phase} {seconds:.0f}" for phase, seconds in lf.timings.items()))
    print(f"The picture is in {picture}.")


if __name__ == "__main__":
    main()
