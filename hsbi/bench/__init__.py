"""Benchmarks: tasks with known answers and measurements of the package itself."""
