"""The per-rank loop: requests, scheduling, KV pages, and the process that runs them."""
