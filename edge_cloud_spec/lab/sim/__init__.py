"""The embedded stand-in of a Go2 in a furnished room: physics, camera, odometry, velocity tracking.

No ROS, no model and no decision here; what the robot sees comes out, velocities go in.
"""
