"""Built-in models with seeded random weights, as exporters write them."""
