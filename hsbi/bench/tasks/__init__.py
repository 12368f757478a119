"""The hierarchical benchmark: six tasks as NumPyro programs, each with its exact posterior."""

from hsbi.bench.tasks import gaussian_linear, gaussian_linear_uniform, gaussian_mixture, sir, slcp, two_moons
from hsbi.bench.tasks.task import Task

TASKS: dict[str, Task] = {
    module.TASK.name: module.TASK
    for module in (gaussian_linear, gaussian_linear_uniform, gaussian_mixture, sir, slcp, two_moons)
}

__all__ = ["TASKS", "Task"]
