# %% [markdown]
# # A seasonal epidemic seen at irregular times, by hsbi, by NUTS and exactly
#
# Sites share one contact rate `beta0`; each has its own seasonal `amplitude`. An epidemic (susceptible, exposed,
# infectious, recovered, with waning immunity) runs for two years unseen; in the third, counts of new cases are taken
# at twelve irregular times per site. hsbi only ever simulates one site at a time. Quadrature gives the exact posterior
# for any number of sites, and NUTS, which needs the density, joins in at two.

# %%
import argparse
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from numpyro.infer import MCMC, NUTS

import hsbi
from hsbi.bench.seirs_calibration import collect, draw_prior, make_references
from hsbi.bench.tasks import seirs
from hsbi.diagnostics import coverage, ecdf_band, tarp

parser = argparse.ArgumentParser(description="A seasonal epidemic by hsbi, by NUTS and exactly.")
parser.add_argument("--out", type=Path, default=Path("outputs"), help="folder for the pictures")
parser.add_argument("--seed", type=int, default=0, help="seed of both methods")
parser.add_argument("--budget", type=int, default=20_000, help="single-site simulations")
parser.add_argument("--sites", type=int, default=100, help="sites of the large data sets")
parser.add_argument("--datasets", type=int, default=60, help="simulated data sets for calibration")
parser.add_argument("--calibration-sites", type=int, default=20, help="their sites")
parser.add_argument("--estimator", type=Path, default=None, help="a file that keeps the trained estimator")
parser.add_argument("--smoke", action="store_true", help="train for a moment only; the answer will be poor")
options = parser.parse_args()
started = time.perf_counter()
if options.smoke:
    options.budget, options.sites, options.datasets, options.calibration_sites = 300, 4, 20, 3
num_draws = 200 if options.smoke else 1_000
key = jax.random.key(options.seed)

# %% [markdown]
# ## One posterior for every schedule
#
# `design` draws the model's arguments: schedules of 2 to `--sites` sites, of which 6 to 12 times are seen at each site.
# Counts at the others are missing, which NaN says; the zeros do not matter. The trained posterior serves all of them.

# %%
NUM_TIMES, FEWEST = 12, 6


def design(key):
    """Draw the number of sites of a data set, their schedules, and how many times are seen."""
    size_key, time_key, seen_key = jax.random.split(key, 3)
    num_sites = int(jax.random.randint(size_key, (), 2, options.sites + 1))
    times = jax.random.uniform(time_key, (num_sites, NUM_TIMES), maxval=float(seirs.WINDOW))
    number = jax.random.randint(seen_key, (num_sites, 1), FEWEST, NUM_TIMES + 1)
    return {"times": times, "y": jnp.where(jnp.arange(NUM_TIMES) < number, 0.0, jnp.nan)}


settings = {}
if options.smoke:
    brief = hsbi.FitConfig(num_steps=20, epoch_steps=10)
    settings = {
        "surrogate_config": hsbi.SurrogateConfig(width=8, depth=1, flow_depth=1, correction=brief, flow=brief),
        "posterior_config": hsbi.FactorizedConfig(
            width=8, depth=1, flow_depth=1, batch_size=8, num_ode_steps=4, head=brief, flow=brief
        ),
    }
times = jnp.asarray(seirs.draw_times(jax.random.key(1), options.sites, NUM_TIMES))
print(hsbi.inspect(seirs.model, times), end="\n\n")
if options.estimator is not None and options.estimator.exists():
    lf = hsbi.load(options.estimator, seirs.model)
else:
    lf = hsbi.LF(seirs.model, design=design, num_simulations=options.budget, **settings)
    lf.simulate(jax.random.fold_in(key, 0))
    lf.fit(jax.random.fold_in(key, 1))
    if options.estimator is not None:
        lf.save(options.estimator)
print(lf)
print(lf.ledger)

# %% [markdown]
# ## Against the exact posterior
#
# Errors of means are in exact standard deviations; amplitudes are averaged over sites. The last data set has a schedule
# of another kind: eight visits to each of ten sites, all in the first half of the year.


# %%
def compare(samples, exact):
    """Give errors of means in exact sds and ratios of sds, of the contact rate and averaged over amplitudes."""
    row = []
    for name, (mean, sd) in exact.items():
        draws = np.asarray(samples[name], float)
        row += [np.mean(np.abs(draws.mean(0) - mean) / sd), np.mean(draws.std(0) / sd)]
    return row


def answer(number, times, beta0):
    """Draw a data set, and its posterior by hsbi and exactly."""
    truth, y = seirs.draw(jax.random.key(100 + number), times, beta0=beta0)
    own, data = jax.random.fold_in(key, 10 + number), jnp.asarray(y, float)
    samples = lf.sample(own, jnp.asarray(times), y=data, num_samples=num_draws)
    return truth, y, samples, seirs.solve(times, y).moments()


CONTACT_RATES = (0.35, 0.55, 0.8)
early = np.sort(np.asarray(times[:10, :8]) / 2, axis=1)
cases = [(np.asarray(times[:2]), beta0) for beta0 in CONTACT_RATES]
cases += [(np.asarray(times), beta0) for beta0 in CONTACT_RATES] + [(early, 0.5)]
answers = [answer(number, *case) for number, case in enumerate(cases)]
print(f"\n{'':22}{'beta0':>12}{'exact':>18}{'hsbi: mean':>12}{'sd':>6}{'amplitude: mean':>18}{'sd':>6}")
for (where, beta0), (_, _, samples, exact) in zip(cases, answers, strict=True):
    label = f"{len(where)} sites" + (", new schedule" if where is early else "")
    mean, sd = exact["beta0"]
    error, ratio, local_error, local_ratio = compare(samples, exact)
    print(f"{label:22}{beta0:12.2f}{mean:10.4f}{sd:8.4f}{error:12.2f}{ratio:6.2f}{local_error:18.2f}{local_ratio:6.2f}")

# %% [markdown]
# ## Two sites, with NUTS

# %%
truth, y, samples, exact = answers[0]
pair = cases[0][0]
kernel = NUTS(seirs.model_with_density)
mcmc = MCMC(
    kernel,
    num_warmup=20 if options.smoke else 500,
    num_samples=40 if options.smoke else 1_000,
    progress_bar=False,
)
mcmc.run(jax.random.key(options.seed), jnp.asarray(pair), y=jnp.asarray(y, float))
by_nuts = mcmc.get_samples()
grid = seirs.reference(jax.random.key(7), pair, y, num_draws)
error, ratio, local_error, local_ratio = compare(by_nuts, exact)
print(
    f"{'2 sites, NUTS':22}{CONTACT_RATES[0]:12.2f}{'':18}{error:12.2f}{ratio:6.2f}{local_error:18.2f}{local_ratio:6.2f}"
)

# %% [markdown]
# The pair plot shows draws of the three; the bands hold 90 % of what the posterior predicts over the year.

# %%
COLORS = {"exact": "#9a9a9a", "NUTS": "#D55E00", "hsbi": "#0072B2"}
LABELS = [r"contact rate $\beta_0$", r"amplitude $A_1$", r"amplitude $A_2$"]


def columns(draws):
    """Put the latents of two sites side by side."""
    return np.column_stack([draws["beta0"], draws["amplitude"]])


def plot_pairs(path):
    """Draw marginals and pairs of the two-site posterior."""
    figure, axes = plt.subplots(3, 3, figsize=(7.6, 7.2), layout="constrained")
    sources = {"exact": columns(grid), "NUTS": columns(by_nuts), "hsbi": columns(samples)}
    true = [float(truth["beta0"]), *map(float, truth["amplitude"])]
    for row in range(3):
        for column in range(3):
            panel = axes[row, column]
            panel.spines[["top", "right"]].set_visible(False)
            if column > row:
                panel.set_axis_off()
                continue
            low, high = np.quantile(sources["exact"][:, column], [0.001, 0.999])
            margin = 0.3 * (high - low)
            panel.set_xlim(low - margin, high + margin)
            for name, draws in sources.items():
                if row == column:
                    filled = {"histtype": "stepfilled", "alpha": 0.4} if name == "exact" else {"histtype": "step"}
                    bins = np.linspace(low - margin, high + margin, 40)
                    panel.hist(draws[:, row], bins, density=True, color=COLORS[name], linewidth=1.6, **filled)
                else:
                    shown = draws[:400]
                    panel.plot(shown[:, column], shown[:, row], ".", color=COLORS[name], markersize=2.5, alpha=0.6)
            panel.axvline(true[column], color="black", linewidth=0.8, linestyle=":")
            if row != column:
                panel.axhline(true[row], color="black", linewidth=0.8, linestyle=":")
                span = np.quantile(sources["exact"][:, row], [0.001, 0.999])
                panel.set_ylim(span[0] - 0.3 * np.ptp(span), span[1] + 0.3 * np.ptp(span))
            else:
                panel.set_yticks([])
            panel.set_xlabel(LABELS[column] if row == 2 else "")
            panel.set_ylabel(LABELS[row] if column == 0 and row else "")
    handles = [plt.Line2D([], [], color=color, linewidth=3, label=name) for name, color in COLORS.items()]
    handles.append(plt.Line2D([], [], color="black", linestyle=":", label="truth"))
    axes[0, 2].legend(handles=handles, loc="upper right", frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def plot_bands(path):
    """Draw what the posteriors predict over the year at both sites."""
    days = jnp.arange(0.0, seirs.WINDOW, 3.0)
    predict = jax.jit(jax.vmap(seirs.epidemic, (0, 0, 0, None)))
    figure, axes = plt.subplots(1, 2, figsize=(9.0, 3.4), sharey=True, layout="constrained")
    for site, panel in enumerate(axes):
        for name, draws in (("exact", grid), ("hsbi", samples)):
            count = min(200, num_draws)
            beta0, amplitude = (jnp.asarray(draws["beta0"][:count]), jnp.asarray(draws["amplitude"][:count, site]))
            counts = predict(jax.random.split(jax.random.key(site), count), beta0, amplitude, days)
            low, middle, high = np.quantile(np.asarray(counts), [0.05, 0.5, 0.95], axis=0)
            alpha = 0.5 if name == "exact" else 0.3
            panel.fill_between(days, low, high, color=COLORS[name], alpha=alpha, linewidth=0, label=f"{name}, 90 %")
            panel.plot(days, middle, color=COLORS[name], linewidth=1.6)
        panel.plot(pair[site], y[site], "o", color="black", markersize=4.5, label="observed")
        panel.set(title=f"site {site + 1}", xlabel="day of the year")
        panel.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("new cases a day")
    axes[1].legend(frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def plot_many(path):
    """Draw the contact rate and all amplitudes of the large data sets against the exact posterior."""
    large = [each for each, (where, _) in zip(answers, cases, strict=True) if len(where) == options.sites][:3]
    figure, axes = plt.subplots(1, len(large), figsize=(3.4 * len(large), 3.6), layout="constrained", squeeze=False)
    for panel, (_, _, drawn, exact) in zip(axes[0], large, strict=True):
        mean, sd = exact["amplitude"]
        low, high = np.quantile(np.asarray(drawn["amplitude"]), [0.05, 0.95], axis=0)
        panel.vlines(mean, low, high, color=COLORS["hsbi"], linewidth=0.8, alpha=0.5, label="hsbi, 90 %")
        panel.plot(
            mean, np.asarray(drawn["amplitude"]).mean(0), "o", color=COLORS["hsbi"], markersize=3, label="hsbi, mean"
        )
        order = np.argsort(mean)
        for sign in (-1.645, 1.645):
            panel.plot(mean[order], (mean + sign * sd)[order], color=COLORS["exact"], linewidth=1.0, zorder=0)
        panel.axline((0.35, 0.35), slope=1, color="black", linewidth=0.8, linestyle="--")
        center, spread = exact["beta0"]
        rate = np.asarray(drawn["beta0"], float)
        panel.set(xlabel="amplitude, exact mean", xlim=seirs.AMPLITUDE_RANGE, ylim=seirs.AMPLITUDE_RANGE)
        panel.set_title(
            rf"$\beta_0$ exact {center:.4f} $\pm$ {spread:.4f}" + f"\nhsbi {rate.mean():.4f} $\\pm$ {rate.std():.4f}",
            fontsize=10,
        )
        panel.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("amplitude, hsbi")
    axes[0, 0].plot([], [], color=COLORS["exact"], label="exact, 90 %")
    axes[0, 0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)
    plt.close(figure)


options.out.mkdir(parents=True, exist_ok=True)
plot_pairs(options.out / "seirs_pairs.png")
plot_bands(options.out / "seirs_bands.png")
plot_many(options.out / "seirs_many.png")

# %% [markdown]
# ## Calibration
#
# Over data sets drawn from the prior: TARP with reference points that depend on the data, for all latents jointly, and
# the coverage of central intervals of the contact rate and of all amplitudes. Draws from the prior go through the same
# test, which must reject them: with references that ignore the data it could not.

# %%
calibration_started = time.perf_counter()
found = collect(lf, jax.random.key(2026), options.datasets, options.calibration_sites, NUM_TIMES, 100)
truths, draws = found["truths"], found["draws"]
references = make_references(truths, found["summaries"])
prior = draw_prior(jax.random.key(5), draws.shape)
results = {
    name: tarp(jax.random.key(3), truths, each, references=references)
    for name, each in (("hsbi", draws), ("the prior", prior))
}
seconds = (time.perf_counter() - calibration_started) / options.datasets
print(f"\nTARP over {options.datasets} data sets of {options.calibration_sites} sites, {seconds:.1f} s each:")
for name, result in results.items():
    print(f"  {name:10} p = {result.p_value:.3g}")
LEVELS = np.linspace(0.05, 0.95, 19)
shares = {
    r"contact rate $\beta_0$": coverage(jax.random.key(4), truths[:, 0], draws[..., 0], tuple(LEVELS)).observed,
    "amplitudes": np.mean(coverage(jax.random.key(5), truths[:, 1:], draws[..., 1:], tuple(LEVELS)).observed, axis=-1),
}


def plot_calibration(path):
    """Draw the distribution of TARP's ranks and the coverage of intervals."""
    figure, axes = plt.subplots(1, 2, figsize=(8.0, 3.8), layout="constrained")
    points, low, high = ecdf_band(options.datasets)
    axes[0].fill_between(points, low, high, color="#dddddd", linewidth=0, label="95 % band if exact")
    for (name, result), color in zip(results.items(), (COLORS["hsbi"], COLORS["NUTS"]), strict=True):
        ranks = np.sort(np.asarray(result.ranks))
        height = (np.arange(ranks.size) + 1) / ranks.size
        axes[0].step(ranks, height, where="post", color=color, linewidth=1.8, label=f"{name}, p = {result.p_value:.2g}")
    axes[0].set(title="TARP, references from the data", xlabel="credibility", ylabel="expected coverage")
    for (name, share), color in zip(shares.items(), (COLORS["hsbi"], "#009E73"), strict=True):
        axes[1].plot(LEVELS, np.ravel(share), color=color, linewidth=1.8, label=name)
    axes[1].set(title="central intervals of hsbi", xlabel="nominal coverage", ylabel="observed coverage")
    for panel in axes:
        panel.plot([0, 1], [0, 1], color="#777777", linewidth=1.0, linestyle="--", zorder=1)
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(frameon=False, fontsize=9, loc="upper left")
    figure.savefig(path, dpi=150)
    plt.close(figure)


plot_calibration(options.out / "seirs_calibration.png")
print(f"\n{time.perf_counter() - started:.0f} s in all. The pictures are in {options.out}.")
