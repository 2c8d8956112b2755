"""Layer 6: regions as kernels of tiles: Triton source printed from stages and index maps."""
