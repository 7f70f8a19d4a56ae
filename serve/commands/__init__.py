"""The commands of `enginewright`, one file each, with a click command named `command`."""
