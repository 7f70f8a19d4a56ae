"""What several test folders share: tiny models."""
