"""``edge-cloud-spec commission``: what a base, its odometry and its camera really do, measured.

``trials`` decides what to drive, without ROS, clock or thread; ``figures`` and ``camera`` make
figures of what was recorded then, or is in a bag; ``report`` says what they mean and writes
``robot.yaml`` and a page. ROS and the terminal are in ``robot``.
"""
