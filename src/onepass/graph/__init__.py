"""Layer 3: the SSA graph, its verifier, interpreter and passes."""
