"""``bench passes``: passes over many sessions, at published shapes."""
