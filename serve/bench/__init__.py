"""Benchmarks: an engine alone, and a server under load."""
