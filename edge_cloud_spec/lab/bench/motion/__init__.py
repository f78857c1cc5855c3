"""``bench motion``: the navigator over a base whose odometry fails, in virtual time."""
