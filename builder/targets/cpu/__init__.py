"""The CPU target: C emitted for one network, compiled with the kernel headers."""
