"""Built-in models with seeded random weights, as exporters write them."""

from onepass.zoo.catalog import build, default_shapes, describe, example_inputs, names

__all__ = ["build", "default_shapes", "describe", "example_inputs", "names"]
