"""ONNX to graph."""
