"""Stands before the real package on the path of a process whose GPU is the host."""
