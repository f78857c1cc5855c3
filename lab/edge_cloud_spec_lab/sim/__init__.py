"""The simulated Go2 in a furnished room: physics, camera, odometry, velocity tracking.

No ROS, no model and no decision here; velocities go in, pictures and odometry come out.
"""
