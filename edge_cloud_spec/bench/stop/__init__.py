"""``bench stop``: How fast the robot stops."""
