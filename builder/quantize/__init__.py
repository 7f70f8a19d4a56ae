"""Number formats of weights, and the arithmetic that rounds to them."""
