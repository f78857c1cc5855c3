"""``edge-cloud-spec commission``: measures what a base, its odometry and its camera really do.

``trials`` decides what to drive, without ROS, clock or thread; ``figures`` and ``camera`` compute
figures from a recording or a bag; ``report`` interprets them and writes ``robot.yaml``.
ROS and the terminal are in ``robot``.
"""
