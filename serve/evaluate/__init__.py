"""How good an engine is: perplexity, KL divergence, multiple choice."""
