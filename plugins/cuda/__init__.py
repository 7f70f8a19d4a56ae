"""Kernels for NVIDIA GPUs, written in Triton, and what is computed about them without it."""
