"""Passes over the network, one a file, and the pipeline that orders them."""
