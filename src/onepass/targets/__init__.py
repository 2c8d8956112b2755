"""Layer 7."""
