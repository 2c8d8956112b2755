"""Layer 10."""
