"""Check the references: calibration over simulated data sets, and the time of one reference.

For every task, latents and data are drawn from the model and the reference draws its posterior. Ranks of every global
and of the log joint density are tested by `uniformity`, those of all locals together by `pooled_uniformity`.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer.util import log_density

from hsbi.bench.tasks import TASKS, Task
from hsbi.bench.tasks.task import stack
from hsbi.diagnostics import pooled_uniformity, sbc_ranks, uniformity


def calibrate(key: jax.Array, task: Task, num_datasets: int, num_sites: int, num_draws: int) -> dict[str, float]:
    """Give p-values of the ranks of each global, of pooled locals and of the log joint density."""

    @jax.jit
    def log_joint(latents: dict[str, jax.Array], y: jax.Array) -> jax.Array:
        return jax.vmap(lambda one: jnp.asarray(log_density(task.model, (num_sites,), {"y": y}, one)[0]))(latents)

    truths, draws = [], []
    for number in range(num_datasets):
        key_data, key_reference = jax.random.split(jax.random.fold_in(key, number))
        truth, y = task.draw(key_data, num_sites)
        posterior = task.reference(key_reference, y, num_draws)
        both = {name: np.concatenate([truth[name][None], posterior[name]]) for name in posterior}
        joint = log_joint({name: jnp.asarray(value, jnp.float32) for name, value in both.items()}, jnp.asarray(y))
        columns = [stack(both, task.global_names), np.asarray(joint, float)[:, None], stack(both, task.local_names)]
        truths.append([column[0] for column in columns])
        draws.append([column[1:] for column in columns])
    true_globals, true_joint, true_locals = (np.stack(part) for part in zip(*truths, strict=True))
    globals_, joint, locals_ = (np.stack(part) for part in zip(*draws, strict=True))
    key_ranks, key_joint, key_pooled = jax.random.split(jax.random.fold_in(key, num_datasets), 3)
    p_values = uniformity(sbc_ranks(key_ranks, true_globals, globals_)).p_value
    names = [f"global {position + 1}" for position in range(len(p_values))]
    return {
        **dict(zip(names, map(float, p_values), strict=True)),
        "locals": float(pooled_uniformity(key_pooled, true_locals, locals_).p_value),
        "log joint": float(uniformity(sbc_ranks(key_joint, true_joint, joint)).p_value[0]),
    }


def main() -> None:
    """Print one row per task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--datasets", type=int, default=200)
    parser.add_argument("--sites", type=int, default=10)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--timed-sites", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    key = jax.random.key(options.seed)
    print(f"p-values over {options.datasets} data sets of {options.sites} sites with {options.draws} draws each, and")
    print(f"seconds of 1,000 draws at {options.timed_sites} sites")
    for name in options.tasks:
        task = TASKS[name]
        p_values = calibrate(key, task, options.datasets, options.sites, options.draws)
        _, y = task.draw(key, options.timed_sites)
        task.reference(key, y, 1_000)
        start = time.perf_counter()
        task.reference(key, y, 1_000)
        seconds = time.perf_counter() - start
        row = "  ".join(f"{label} {value:.3f}" for label, value in p_values.items())
        print(f"{name:<24}{seconds:6.1f} s   {row}", flush=True)


if __name__ == "__main__":
    main()
