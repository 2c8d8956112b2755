"""Layer 8."""
