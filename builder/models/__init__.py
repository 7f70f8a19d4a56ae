"""Model families, one a file, and the registry that finds them."""
