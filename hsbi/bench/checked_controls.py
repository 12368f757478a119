"""Verdicts of `hsbi.check` itself on posteriors and surrogates that are wrong in known ways.

The estimator is an `LF` of Gaussian Linear with 10 sites whose posterior is the exact one, changed as asked, so nothing
but the check is on trial: its data sets, its summaries, the observed data and l-C2ST included. `hsbi.bench.controls`
tries the tests behind the lines on plain arrays.
"""

import argparse
import dataclasses
import math
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import hsbi
from hsbi.bench.tasks import gaussian_linear
from hsbi.diagnostics.verdict import Verdict
from hsbi.inference.arrays import Latents
from hsbi.inference.batch import Observed, Synthetic
from hsbi.inference.lf import make_view
from hsbi.model.program import Program
from hsbi.training import Checkpoint

NUM_SITES, NUM_SIMULATIONS = 10, 20_000
_DIM = 5
# Log sigma, far beyond where its prior and likelihood leave any mass.
_GRID = jnp.linspace(-12.0, 2.0, 2000)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Posterior:
    """The exact posterior of Gaussian Linear, wrong where asked.

    Attributes:
        coordinates: Of the estimator.
        view: Of the estimator.
        change: Numbers by name: `use`, 1 to use the data and 0 to draw from the prior; `shift` of globals or locals, in
            posterior standard deviations; `scale`, a factor of the standard deviation; `swap`, 1 to give each site the
            locals of another.
    """

    coordinates: Any
    view: Any
    change: dict[str, Array]

    def sample(self, program: Program, observed: Observed, key: Array, num_draws: int) -> Latents:
        """Draw sigma by the inverse of its distribution on a grid, then mu given sigma."""
        change = self.change
        y = self.view.transforms["y"].decode(observed.values["y"]).reshape(-1, _DIM)
        keys = jax.random.split(key, 4)
        variance = jnp.exp(2 * _GRID)
        log_density = _GRID - 0.5 * variance
        log_density += change["use"] * -0.5 * (jnp.sum(y**2) / (1 + variance) + y.size * jnp.log1p(variance))
        weight = jax.nn.softmax(log_density)
        uniform = jax.random.uniform(keys[0], (num_draws,))
        log_sigma = jnp.interp(uniform, jnp.cumsum(weight), _GRID)
        center, shrink = weight @ _GRID, change["use"] / (1 + variance)
        exact = jnp.exp(log_sigma)
        sd = jnp.sqrt(weight @ variance - (weight @ jnp.exp(_GRID)) ** 2)
        sigma = jnp.exp(center + change["scale_globals"] * (log_sigma - center)) + change["shift_globals"] * sd
        own = change["use"] / (1 + exact**2)
        noise = jax.random.normal(keys[1], (num_draws, *y.shape))
        mu = own[:, None, None] * y + jnp.sqrt(1 - own)[:, None, None] * noise
        mean = (weight @ shrink) * y
        spread = jnp.sqrt(1 - weight @ shrink + y**2 * (weight @ shrink**2 - (weight @ shrink) ** 2))
        mu = mean + change["scale_locals"] * (mu - mean) + change["shift_locals"] * spread
        mu = jnp.where(change["swap"] > 0, jnp.roll(mu, 1, axis=1), mu)
        return jax.vmap(lambda s, m: self.coordinates.encode(program, {"sigma": s, "mu": m}))(sigma, mu)


EXACT = {"use": 1.0, "shift_globals": 0.0, "shift_locals": 0.0, "scale_globals": 1.0, "scale_locals": 1.0, "swap": 0.0}

# Each control: what is changed, and the lines of the report that must not trust it.
CONTROLS: dict[str, tuple[dict[str, float], tuple[str, ...]]] = {
    "exact": ({}, ()),
    "prior": ({"use": 0.0}, ("globals", "locals")),
    "mean of globals + 0.5 sd": ({"shift_globals": 0.5}, ("globals",)),
    "mean of locals + 0.5 sd": ({"shift_locals": 0.5}, ("locals",)),
    "sd of globals x 0.6": ({"scale_globals": 0.6}, ("globals",)),
    "sd of locals x 0.6": ({"scale_locals": 0.6}, ("locals",)),
    "sd of globals x 1.6": ({"scale_globals": 1.6}, ("globals",)),
    "sd of locals x 1.6": ({"scale_locals": 1.6}, ("locals",)),
    "locals swapped": ({"swap": 1.0}, ("locals",)),
    "surrogate noise x 1.3": ({"noise": 1.3}, ("surrogate of y",)),
}
LINES = ("globals", "locals", "joint", "surrogate of y", "observed data", "globals at the data")


class ExactLF(hsbi.LF):
    """Likelihood-factorized inference whose posterior is given and not trained."""

    def _fit_posterior(self, key: Array, held_out_key: Array, source: Synthetic, states: Checkpoint | None) -> None:
        view = make_view(source.surrogates, source.design)
        change = {name: jnp.asarray(value) for name, value in EXACT.items()}
        self.posterior = cast(Any, Posterior(coordinates=source.coordinates, view=view, change=change))

    def changed(self, change: dict[str, float]) -> "ExactLF":
        """Give an estimator that differs by numbers only, so that nothing is compiled again."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        numbers = {name: jnp.asarray(change.get(name, value)) for name, value in EXACT.items()}
        other.posterior = dataclasses.replace(cast(Any, self.posterior), change=numbers)
        surrogate = self.surrogate["y"]
        # The last row of the linear part is the constant.
        log_scale = surrogate.linear.log_scale.at[-1].add(math.log(change.get("noise", 1.0)))
        other.surrogate = {"y": dataclasses.replace(surrogate, linear=surrogate.linear._replace(log_scale=log_scale))}
        return other


def make_estimator(seed: int) -> ExactLF:
    """Simulate, and solve for the surrogate, whose linear part is exact here; its networks are hardly trained."""
    brief = hsbi.FitConfig(num_steps=50, epoch_steps=50)
    lf = ExactLF(
        gaussian_linear.model,
        num_simulations=NUM_SIMULATIONS,
        surrogate_config=hsbi.SurrogateConfig(correction=brief, flow=brief),
        progress=False,
    )
    data_key, run_key = jax.random.split(jax.random.key(seed))
    lf.run(run_key, NUM_SITES, y=jnp.asarray(gaussian_linear.draw(data_key, NUM_SITES)[1]))
    return lf


def check_control(lf: ExactLF, seed: int, name: str) -> dict[str, Verdict]:
    """Check one control at a new data set."""
    data_key, sample_key, check_key = jax.random.split(jax.random.fold_in(jax.random.key(1), seed), 3)
    _, y = gaussian_linear.draw(data_key, NUM_SITES)
    changed = lf.changed(CONTROLS[name][0])
    changed.sample(sample_key, NUM_SITES, y=jnp.asarray(y))
    report = hsbi.check(changed, check_key, progress=False)
    return {line: report[line].verdict for line in LINES}


def main() -> None:
    """Print how often each line was trusted, doubtful and wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    lf = make_estimator(options.seed)
    print(f"{options.repeats} repeats; each entry: trusted / doubtful / wrong")
    print(f"{'control':<26}" + "".join(f"{line:>{_width(line)}}" for line in LINES) + f"{'all trusted':>13}")
    for name in CONTROLS:
        found = [check_control(lf, options.seed + repeat, name) for repeat in range(options.repeats)]
        counts = [[sum(one[line] == v for one in found) for v in _VERDICTS] for line in LINES]
        trusted = sum(all(np.array(list(one.values())) == "trusted") for one in found)
        cells = "".join(f"{' / '.join(map(str, n)):>{_width(line)}}" for line, n in zip(LINES, counts, strict=True))
        print(f"{name:<26}{cells}{trusted:>13}", flush=True)


def _width(line: str) -> int:
    return max(13, len(line) + 2)


_VERDICTS: tuple[Verdict, ...] = ("trusted", "doubtful", "wrong")

if __name__ == "__main__":
    main()
