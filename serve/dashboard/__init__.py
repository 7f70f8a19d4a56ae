"""The page at `/`: the engine live, and a chat box."""
