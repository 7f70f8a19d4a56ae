"""The TensorRT targets: networks as ONNX, compiled by TensorRT or TensorRT-RTX."""
