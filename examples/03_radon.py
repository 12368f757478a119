# %% [markdown]
# # Radon in 85 counties: ragged sites, by hsbi and by NUTS
#
# 919 houses of Minnesota were measured, 1 to 116 in a county. A county's level depends on its soil's uranium; a house's
# measurement also on the floor it was taken on. Counties with few houses borrow strength from the others. Data are
# padded to the largest county with NaN, and one program is given to both methods. Given the two scales the model is
# Gaussian, so quadrature over them is the exact posterior.

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
from numpyro.infer import MCMC, NUTS

import hsbi
from hsbi.bench.tasks import radon

parser = argparse.ArgumentParser(description="Radon in 85 counties by hsbi and by NUTS, against the exact posterior.")
parser.add_argument("--out", type=Path, default=Path("outputs"), help="folder for the picture")
parser.add_argument("--seed", type=int, default=0, help="seed of both methods")
parser.add_argument("--budget", type=int, default=10_000, help="simulations of a county")
parser.add_argument("--smoke", action="store_true", help="train for a moment on ten counties; the answer will be poor")
options = parser.parse_args()
started = time.perf_counter()
houses = radon.load()
counties = np.arange(10) if options.smoke else np.arange(len(houses.county))
number = np.isfinite(houses.y[counties]).sum(1)
floor, y = (jnp.asarray(value[counties][:, : number.max()]) for value in (houses.floor, houses.y))
uranium = jnp.asarray(houses.uranium[counties])

# %% [markdown]
# ## The model
#
# NaN in `y` is no house: it is masked out, and filled in for NUTS, whose gradients must not meet it. The floor differs
# from house to house, so it is an input of the observation rather than a covariate of the county.


# %%
def model(floor, uranium, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    g = numpyro.sample("g", dist.Normal(0.0, 1.0))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    sigma_alpha = numpyro.sample("sigma_alpha", dist.HalfNormal(1.0))
    sigma_y = numpyro.sample("sigma_y", dist.HalfNormal(1.0))
    observed = True if y is None else ~jnp.isnan(y)
    data = None if y is None else jnp.nan_to_num(y)
    with numpyro.plate("county", floor.shape[0], dim=-2):
        alpha = numpyro.sample("alpha", dist.Normal(mu + g * uranium[:, None], sigma_alpha))
        with numpyro.plate("house", floor.shape[1], dim=-1):
            radon_level = dist.Normal(alpha + b * floor, sigma_y).mask(observed)
            numpyro.sample("y", radon_level, obs=data, infer={"inputs": floor})


print(hsbi.inspect(model, floor, uranium, y=y), end="\n\n")

# %% [markdown]
# ## hsbi and NUTS

# %%
settings = {}
if options.smoke:
    brief = hsbi.FitConfig(num_steps=20, epoch_steps=10)
    settings = {
        "surrogate_config": hsbi.SurrogateConfig(width=8, depth=1, flow_depth=1, correction=brief, flow=brief),
        "posterior_config": hsbi.FactorizedConfig(
            width=8, depth=1, flow_depth=1, batch_size=8, num_ode_steps=4, head=brief, flow=brief
        ),
    }
num_simulations = 200 if options.smoke else options.budget
lf = hsbi.LF(model, num_simulations=num_simulations, num_samples=500 if options.smoke else 4_000, **settings)
lf.run(jax.random.key(options.seed), floor, uranium, y=y)

nuts_started = time.perf_counter()
mcmc = MCMC(
    NUTS(model, target_accept_prob=0.95),
    num_warmup=100 if options.smoke else 1_000,
    num_samples=200 if options.smoke else 4_000,
    progress_bar=False,
)
mcmc.run(jax.random.key(options.seed), floor, uranium, y=y)
jax.block_until_ready(mcmc.get_samples())
nuts_seconds = time.perf_counter() - nuts_started

# %% [markdown]
# ## Side by side
#
# Errors of means are in exact standard deviations; for the counties the average and the worst are given.

# %%
exact = radon.moments(floor, uranium, y)
draws = {}
for name, samples in (("hsbi", lf.get_samples()), ("NUTS", mcmc.get_samples())):
    draws[name] = {site: np.asarray(value, float) for site, value in samples.items()}
    draws[name]["alpha"] = draws[name]["alpha"].reshape(-1, len(counties))
print(f"{'':14}{'exact':>16}{'hsbi: mean':>13}{'sd':>7}{'NUTS: mean':>13}{'sd':>7}")
for site in radon.GLOBALS:
    mean, sd = exact[site]
    cells = [
        f"{(values[site].mean() - mean) / sd:+13.2f}{values[site].std(ddof=1) / sd:7.2f}" for values in draws.values()
    ]
    print(f"{site:14}{mean:9.3f}{sd:7.3f}{''.join(cells)}")
mean, sd = exact["alpha"]
errors = {name: np.abs(values["alpha"].mean(0) - mean) / sd for name, values in draws.items()}
ratios = {name: values["alpha"].std(0, ddof=1) / sd for name, values in draws.items()}
for label, of_errors, of_ratios in (
    ("average", np.mean, np.mean),
    ("worst", np.max, lambda r: r[np.argmax(abs(np.log(r)))]),
):
    cells = [f"{of_errors(errors[name]):13.2f}{of_ratios(ratios[name]):7.2f}" for name in draws]
    print(f"counties, {label:20}{''.join(cells)}")
print(f"\n{lf.ledger}\n\nseconds, compilation included")
for phase, seconds in {**{f"hsbi {phase}": value for phase, value in lf.timings.items()}, "NUTS": nuts_seconds}.items():
    print(f"  {phase:15}{seconds:7.1f}")

# %% [markdown]
# ## The forest of counties
#
# Sorted by the number of houses. Lines hold the central 90 %, gray bands those of the exact posterior; crosses are the
# plain means of a county's houses, adjusted for the floor: the fewer houses, the further the intercept is pulled away
# from them.

# %%
COLORS = {"hsbi": "#0072B2", "NUTS": "#D55E00"}


def plot_forest(path):
    """Draw the intercepts of all counties and the globals."""
    order = np.argsort(-number, kind="stable")
    reference = radon.reference(jax.random.key(5), floor, uranium, y, 4_000)
    figure, axes = plt.subplot_mosaic(
        [["forest", "globals"], ["forest", "."]],
        figsize=(9.0, max(4.5, 0.16 * len(counties))),
        width_ratios=[2, 1],
        height_ratios=[3, max(1.0, 0.16 * len(counties) - 3)],
        layout="constrained",
    )
    forest, panel = axes["forest"], axes["globals"]
    rows = np.arange(len(counties))
    low, high = np.quantile(reference["alpha"][:, order], [0.05, 0.95], axis=0)
    forest.barh(rows, high - low, left=low, height=0.9, color="#dddddd", label="exact")
    for (name, values), shift in zip(draws.items(), (-0.2, 0.2), strict=True):
        ends = np.quantile(values["alpha"][:, order], [0.05, 0.5, 0.95], axis=0)
        forest.hlines(rows + shift, ends[0], ends[2], color=COLORS[name], linewidth=1.2)
        forest.plot(ends[1], rows + shift, "o", color=COLORS[name], markersize=2.8, label=name)
    adjusted = np.nanmean(np.asarray(y - exact["b"][0] * floor), axis=1)[order]
    forest.plot(adjusted, rows, "x", color="#444444", markersize=3.5, label="plain mean")
    names = [f"{houses.county[counties[place]]} ({number[place]})" for place in order]
    forest.set_yticks(rows, names, fontsize=6 if len(counties) > 20 else 9)
    forest.set_ylim(len(counties) - 0.3, -0.7)
    forest.set_xlabel("log radon in the basement, by county (houses)")
    forest.tick_params(axis="y", length=0)
    forest.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=4, frameon=False, fontsize=9, columnspacing=1.2)
    places = np.arange(len(radon.GLOBALS))
    for place, site in enumerate(radon.GLOBALS):
        center, scale = exact[site]
        for (name, values), shift in zip(draws.items(), (-0.12, 0.12), strict=True):
            ends = (np.quantile(values[site], [0.05, 0.5, 0.95]) - center) / scale
            panel.hlines(place + shift, ends[0], ends[2], color=COLORS[name], linewidth=2.0)
            panel.plot(ends[1], place + shift, "o", color=COLORS[name], markersize=5)
        ends = (np.quantile(reference[site], [0.05, 0.95]) - center) / scale
        panel.barh(place, np.diff(ends), left=ends[0], height=0.6, color="#dddddd", zorder=0)
    panel.set_yticks(places, [r"$\mu$", "$g$", "$b$", r"$\sigma_\alpha$", r"$\sigma_y$"])
    panel.set_ylim(len(places) - 0.4, -0.6)
    panel.set_xlabel("globals, exact sds from the exact mean", fontsize=9)
    for part in (forest, panel):
        part.spines[["left", "top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


picture = options.out / "radon.png"
plot_forest(picture)
print(f"  {'total':15}{time.perf_counter() - started:7.1f}\n\nThe forest plot is in {picture}.")
