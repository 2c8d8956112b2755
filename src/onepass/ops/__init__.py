"""Layer 2: one `OpDef` per op, by family."""
