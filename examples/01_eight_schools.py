# %% [markdown]
# # Eight schools, by hsbi and by NUTS
#
# A classic with a known answer. Eight schools tested a coaching program; each reports the effect `y` that it measured
# and the standard error `sigma` of that measurement. How large is the effect of each school, and how much do schools
# differ? One NumPyro model is given to `hsbi.LF`, which only ever simulates it, and to NUTS, which uses its density.
# Both are compared with the exact posterior.

# %%
import argparse
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.stats import norm
from numpyro.handlers import reparam
from numpyro.infer import MCMC, NUTS
from numpyro.infer.reparam import LocScaleReparam

import hsbi

parser = argparse.ArgumentParser(description="Eight schools by hsbi and by NUTS, against the exact posterior.")
parser.add_argument("--out", type=Path, default=Path("outputs"), help="folder for the picture")
parser.add_argument("--seed", type=int, default=0, help="seed of both methods")
parser.add_argument("--smoke", action="store_true", help="train for a moment only; the answer will be poor")
options = parser.parse_args()
started = time.perf_counter()

# %% [markdown]
# ## The model
#
# Written as for NUTS; nothing in it is special to hsbi. `mu` and `tau` are global, `theta` is local to a school.

# %%
SCHOOLS = ["Choate", "Deerfield", "Andover", "Exeter", "Hotchkiss", "Lawrenceville", "St. Paul's", "Mt. Hermon"]
y = jnp.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
sigma = jnp.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def eight_schools(sigma, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("school", sigma.shape[0]):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


print(hsbi.inspect(eight_schools, sigma, y=y), end="\n\n")

# %% [markdown]
# ## hsbi
#
# The budget is 5,000 simulations of *one school each*. They teach a surrogate of a school's measurement, which then
# makes all the data that the posterior is trained on. `--smoke` cuts training short.

# %%
settings = {}
if options.smoke:
    brief = hsbi.FitConfig(num_steps=40, epoch_steps=20)
    settings = {
        "surrogate_config": hsbi.SurrogateConfig(width=8, depth=1, flow_depth=1, correction=brief, flow=brief),
        "posterior_config": hsbi.FactorizedConfig(
            width=8, depth=1, flow_depth=1, batch_size=32, num_ode_steps=4, head=brief, flow=brief
        ),
    }
lf = hsbi.LF(eight_schools, num_simulations=5_000, num_samples=1_000 if options.smoke else 4_000, **settings)
lf.run(jax.random.key(options.seed), sigma, y=y)

# %% [markdown]
# ## NUTS
#
# The same function. Its funnel needs the usual non-centered form for NUTS, which `reparam` gives it; hsbi finds such
# coordinates by itself.

# %%
nuts_started = time.perf_counter()
kernel = NUTS(reparam(eight_schools, config={"theta": LocScaleReparam(centered=0)}), target_accept_prob=0.95)
mcmc = MCMC(
    kernel,
    num_warmup=100 if options.smoke else 1_000,
    num_samples=250 if options.smoke else 1_000,
    num_chains=4,
    chain_method="vectorized",
    progress_bar=False,
)
mcmc.run(jax.random.key(options.seed), sigma, y=y)
jax.block_until_ready(mcmc.get_samples())
nuts_seconds = time.perf_counter() - nuts_started

# %% [markdown]
# ## The exact posterior
#
# Given `tau`, the other latents are Gaussian, so one sum over a grid of `tau` gives every mean, standard deviation and
# quantile. Quantiles are the 5, 25, 50, 75 and 95 % ones.

# %%
NAMES = ["mu", "tau", *SCHOOLS]
LEVELS = np.array([0.05, 0.25, 0.5, 0.75, 0.95])


def exact_posterior():
    """Give means, standard deviations and quantiles of the latents in the order of `NAMES`."""
    tau = np.exp(np.linspace(np.log(1e-4), np.log(1e3), 1_500))[:, None]
    effect, error = np.asarray(y, float), np.asarray(sigma, float)
    precision = 1 / (error**2 + tau**2)
    variance = 1 / (1 / 5.0**2 + precision.sum(1, keepdims=True))
    center = variance * (precision * effect).sum(1, keepdims=True)
    log_weight = 0.5 * (np.log(precision).sum(1) + np.log(variance[:, 0]) + center[:, 0] ** 2 / variance[:, 0])
    log_weight -= 0.5 * (precision * effect**2).sum(1)
    log_weight += np.log(tau[:, 0]) - np.log1p((tau[:, 0] / 5.0) ** 2)
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    pull = error**2 * precision
    means = np.hstack([center, tau, (1 - pull) * effect + pull * center])
    variances = np.hstack([variance, 0 * tau, (1 - pull) * error**2 + pull**2 * variance])
    mean = weight @ means
    sd = np.sqrt(weight @ (variances + means**2) - mean**2)
    grid = np.linspace(-40.0, 40.0, 801)
    quantiles = []
    for location, scale in zip(means.T, np.sqrt(variances.T), strict=True):
        if scale.any():
            mass, points = weight @ np.asarray(norm.cdf(grid, location[:, None], scale[:, None])), grid
        else:
            mass, points = np.cumsum(weight) - 0.5 * weight, location
        quantiles.append(np.interp(LEVELS, mass, points))
    return mean, sd, np.array(quantiles)


def summarize(samples):
    """Give the same of draws."""
    columns = np.column_stack([samples["mu"], samples["tau"], samples["theta"]]).astype(float)
    return columns.mean(0), columns.std(0, ddof=1), np.quantile(columns, LEVELS, axis=0).T


exact, by_hsbi, by_nuts = exact_posterior(), summarize(lf.get_samples()), summarize(mcmc.get_samples())

# %% [markdown]
# ## Side by side
#
# The last two columns are hsbi's errors: of the mean in exact standard deviations, and the ratio of the standard
# deviations.

# %%
print(f"\n{'':14}{'exact':>16}{'hsbi':>16}{'NUTS':>16}{'hsbi: mean':>14}{'sd':>7}")
print(f"{'':14}{'mean     sd':>16}{'mean     sd':>16}{'mean     sd':>16}{'error':>14}{'ratio':>7}")
for row, name in enumerate(NAMES):
    cells = "".join(f"{mean[row]:9.2f}{sd[row]:7.2f}" for mean, sd, _ in (exact, by_hsbi, by_nuts))
    error, ratio = (by_hsbi[0][row] - exact[0][row]) / exact[1][row], by_hsbi[1][row] / exact[1][row]
    print(f"{name:14}{cells}{error:+14.2f}{ratio:7.2f}")
print(f"\n{lf.ledger}\n\nseconds, compilation included")
for phase, seconds in {**{f"hsbi {phase}": value for phase, value in lf.timings.items()}, "NUTS": nuts_seconds}.items():
    print(f"  {phase:15}{seconds:7.1f}")

# %% [markdown]
# ## The forest plot
#
# Points are medians, thick lines hold the central 50 % and thin lines the central 90 %. Gray bands show the same of the
# exact posterior, open squares what each school measured: the less certain, the further it is pulled to the mean.

# %%
COLORS = {"hsbi": "#0072B2", "NUTS": "#D55E00"}


def plot_forest(path):
    """Draw all intervals and save the picture."""
    rows = np.array([0.0, 1.0, *(2.4 + np.arange(len(SCHOOLS)))])
    figure, axes = plt.subplots(figsize=(7.6, 5.8), layout="constrained")
    low, low_half, middle, high_half, high = exact[2].T
    axes.barh(rows, high - low, left=low, height=0.76, color="#eeeeee", zorder=1)
    axes.barh(rows, high_half - low_half, left=low_half, height=0.76, color="#d6d6d6", zorder=1, label="exact")
    axes.vlines(middle, rows - 0.38, rows + 0.38, color="#8a8a8a", linewidth=1.2, zorder=2)
    for name, (_, _, quantiles), shift, marker in (("hsbi", by_hsbi, -0.17, "o"), ("NUTS", by_nuts, 0.17, "D")):
        color = COLORS[name]
        axes.hlines(rows + shift, quantiles[:, 0], quantiles[:, 4], color=color, linewidth=1.4, zorder=3)
        axes.hlines(rows + shift, quantiles[:, 1], quantiles[:, 3], color=color, linewidth=4.0, zorder=3)
        style = {"marker": marker, "markersize": 7, "markeredgecolor": "white", "color": color}
        axes.plot(quantiles[:, 2], rows + shift, linestyle="none", zorder=4, **style)
        axes.plot([], [], linewidth=4.0, label=name, **style)
    measured = {"marker": "s", "markersize": 5.5, "markerfacecolor": "white", "color": "#444444", "linestyle": "none"}
    axes.plot(y, rows[2:], zorder=5, label="measured", **measured)
    axes.axvline(0.0, color="#c4c4c4", linewidth=0.8, zorder=0)
    axes.axhline(1.7, color="#c4c4c4", linewidth=0.8, zorder=0)
    axes.set_yticks(rows, ["mean effect μ", "spread τ", *SCHOOLS])
    axes.set_ylim(rows[-1] + 0.6, rows[0] - 0.6)
    axes.set_xlabel("effect of coaching on the test score, in points")
    axes.spines[["left", "top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    handles, labels = axes.get_legend_handles_labels()
    order = [labels.index(name) for name in ("hsbi", "NUTS", "exact", "measured")]
    figure.legend(
        [handles[place] for place in order],
        [labels[place] for place in order],
        title="Posterior of eight schools: median, central 50 % and 90 %",
        title_fontproperties={"weight": "bold", "size": 12},
        ncols=4,
        loc="outside upper left",
        alignment="left",
        frameon=False,
        handlelength=2.2,
        columnspacing=2.2,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


picture = options.out / "eight_schools.png"
plot_forest(picture)
print(f"  {'total':15}{time.perf_counter() - started:7.1f}\n\nThe forest plot is in {picture}.")
