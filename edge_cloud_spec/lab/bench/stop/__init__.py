"""``bench stop``: how fast the robot stops, with real processes."""
