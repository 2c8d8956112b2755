"""llvm."""
