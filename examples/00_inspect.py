# %% [markdown]
# # What hsbi reads from a model
#
# Before anything is simulated, `hsbi.inspect` says how a NumPyro program was understood: which sites are global,
# local or observed, along which plate, with which support. Nothing here needs data.

# %%
import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpyro
import numpyro.distributions as dist

import hsbi

parser = argparse.ArgumentParser(description="Inspect two hierarchical models and draw one of them.")
parser.add_argument("--out", type=Path, default=Path("outputs"), help="folder for the picture")
parser.add_argument("--smoke", action="store_true", help="use a small model")
options = parser.parse_args()

# %% [markdown]
# ## Eight schools
#
# An ordinary model with densities, as one would write it for NUTS. `sigma` has one entry per school, so it is
# reported as a covariate.


# %%
def eight_schools(sigma, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("school", sigma.shape[0]):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


sigma = jnp.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
y = jnp.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
print(hsbi.inspect(eight_schools, sigma, y=y), end="\n\n")

# %% [markdown]
# ## A seasonal epidemic in several cities
#
# The observation is a simulator: a stochastic SIRS model whose transmission rate follows the seasons. It has no
# density, only code that draws weekly case counts for one city.

# %%
POPULATION = 100_000.0
RECOVERY_RATE = 0.25
WANING_RATE = 0.01


def simulate_city(key, beta0, amplitude, weeks):
    """Draw one city's weekly reported cases by tau-leaping, one step a week."""

    def step(state, inputs):
        susceptible, infected = state
        week, week_key = inputs
        key_in, key_out, key_loss = jax.random.split(week_key, 3)
        beta = beta0 * (1.0 + amplitude * jnp.cos(2.0 * jnp.pi * week / 52.0))
        hazard = beta * infected / POPULATION
        recovered = POPULATION - susceptible - infected
        cases = jnp.minimum(jax.random.poisson(key_in, hazard * susceptible), susceptible)
        healed = jnp.minimum(jax.random.poisson(key_out, RECOVERY_RATE * infected), infected)
        waned = jnp.minimum(jax.random.poisson(key_loss, WANING_RATE * recovered), recovered)
        return (susceptible - cases + waned, infected + cases - healed), cases

    start = (0.6 * POPULATION, 0.001 * POPULATION)
    _, cases = jax.lax.scan(step, start, (weeks, jax.random.split(key, weeks.shape[0])))
    return cases


def epidemic(weeks, cases=None):
    beta0 = numpyro.sample("beta0", dist.Uniform(0.3, 1.2))
    spread = numpyro.sample("spread", dist.HalfNormal(0.2))
    with numpyro.plate("city", weeks.shape[0]):
        amplitude = numpyro.sample("amplitude", dist.LogNormal(-1.5, spread))
        numpyro.sample(
            "cases",
            hsbi.Simulator(
                simulate_city,
                beta0,
                amplitude,
                weeks,
                param_event_dims=(0, 0, 1),
                support=dist.constraints.nonnegative_integer,
            ),
            obs=cases,
            infer={"inputs": weeks},
        )


num_cities, num_weeks = (3, 6) if options.smoke else (20, 104)
weeks = jnp.tile(jnp.arange(num_weeks, dtype=jnp.float32), (num_cities, 1))
structure = hsbi.inspect(epidemic, weeks)
print(structure, end="\n\n")

# %% [markdown]
# ## The plate diagram

# %%
options.out.mkdir(parents=True, exist_ok=True)
axes = structure.plot()
picture = options.out / "epidemic.png"
axes.figure.savefig(picture, dpi=150, bbox_inches="tight")
plt.close(axes.figure)
print(f"The plate diagram is in {picture}.")
