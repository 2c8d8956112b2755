"""Layer 1: the loop IR, its algebra, printer, verifier, simplifier and interpreter."""
