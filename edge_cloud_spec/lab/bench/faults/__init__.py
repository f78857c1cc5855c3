"""``bench faults``: each fault put into the running system, and what the robot then did."""
