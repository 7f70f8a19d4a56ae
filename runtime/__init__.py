"""What an engine is, and how one rank runs it."""
