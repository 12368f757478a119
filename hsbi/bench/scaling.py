"""Time and memory by the number of sites, for the factorized posterior and, beside it, the joint one.

Each number of sites runs in a process of its own, so that its peak memory is its own. Times are those of compiled code.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import jax

_NUM_STEPS = 20
_DIM = 5


def measure(method: str, num_sites: int, num_draws: int) -> dict[str, float]:
    """Train briefly on Gaussian Linear and measure a training step, the draws and the peak memory."""
    import jax.numpy as jnp

    from hsbi import LF, FactorizedConfig, FitConfig, JointConfig, SurrogateConfig
    from hsbi.bench.gaussian_linear import draw, model

    once = FitConfig(num_steps=1, epoch_steps=1)
    steps = FitConfig(num_steps=2 * _NUM_STEPS, epoch_steps=_NUM_STEPS, patience=10)
    seconds: dict[str, list[tuple[float, int]]] = {}

    class Clock:
        def __init__(self, name: str, total: int) -> None:
            self.reports = seconds.setdefault(name, [(time.perf_counter(), 0)])

        def update(self, done: int, note: str = "") -> None:
            self.reports.append((time.perf_counter(), done))

        def close(self) -> None:
            pass

    joint = JointConfig(fit=steps, num_ode_steps=8)
    config = joint if method == "joint" else FactorizedConfig(head=steps, flow=steps)
    lf = LF(
        model,
        num_simulations=1000,
        num_samples=num_draws,
        observed=("y",),
        surrogate_config=SurrogateConfig(correction=once, flow=once),
        posterior_config=config,
        progress=Clock,
    )
    lf.simulate(jax.random.key(0), num_sites, _DIM)
    lf.fit(jax.random.key(1))
    # The first report of a stage includes compilation, the second does not.
    step = sum(
        (reports[2][0] - reports[1][0]) / (reports[2][1] - reports[1][1])
        for name, reports in seconds.items()
        if name.startswith("posterior")
    )
    _, y = draw(jax.random.key(2), num_sites, _DIM)
    # The first call compiles.
    lf.sample(jax.random.key(3), num_sites, _DIM, y=jnp.asarray(y))
    lf.sample(jax.random.key(4), num_sites, _DIM, y=jnp.asarray(y))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {"step": step, "draws": lf.timings["sample"], "gigabytes": peak / 1e9}


def main() -> None:
    """Print one row per method and number of sites, with ratios to the fewest sites."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, nargs="+", default=[25, 100, 400, 1000])
    parser.add_argument("--joint-sites", type=int, nargs="*", default=[5, 25, 50])
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--joint-draws", type=int, default=20)
    parser.add_argument("--one", nargs=2, metavar=("METHOD", "SITES"), help="measure here and print JSON")
    options = parser.parse_args()
    if options.one:
        method, sites = options.one[0], int(options.one[1])
        print(json.dumps(measure(method, sites, options.draws)))
        return
    print(f"{'method':<12}{'sites':>6}{'step, ms':>10}{'ratio':>7}{'draws':>7}{'s':>8}{'ratio':>7}{'peak, GB':>10}")
    for method, all_sites, draws in (
        ("factorized", options.sites, options.draws),
        ("joint", options.joint_sites, options.joint_draws),
    ):
        first: dict[str, float] = {}
        for sites in all_sites:
            command = [sys.executable, "-m", __spec__.name, "--one", method, str(sites), "--draws", str(draws)]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            row = json.loads(output.splitlines()[-1])
            first = first or row
            print(
                f"{method:<12}{sites:>6}{1e3 * row['step']:>10.1f}{row['step'] / first['step']:>7.1f}{draws:>7}"
                f"{row['draws']:>8.2f}{row['draws'] / first['draws']:>7.1f}{row['gigabytes']:>10.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
