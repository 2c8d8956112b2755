"""Layer 0: errors, element types, tensor types and settings; knows nothing of compilers."""
