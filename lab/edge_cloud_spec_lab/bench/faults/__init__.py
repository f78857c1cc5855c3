"""``bench faults``: injects each fault into the running system, and observes the robot."""
