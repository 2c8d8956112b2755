"""Layer 11: a model run several ways side by side, unfused, fused, and on other runtimes."""
