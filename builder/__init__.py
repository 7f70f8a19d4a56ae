"""Model definitions and passes, and the build that turns a checkpoint into an engine."""
