"""What networks are compiled for; a target is found by name and imported on use."""
