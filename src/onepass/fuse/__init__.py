"""Layer 6."""
