"""Networks: the only package that imports flax. Each is a frozen module with `init` and `apply`."""
