"""The outside world: command line, HTTP, and the LLM class."""
