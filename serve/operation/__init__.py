"""Running a server: its configuration, who may use it, and what it tells about itself."""
