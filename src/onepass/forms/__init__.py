"""Layer 5."""
