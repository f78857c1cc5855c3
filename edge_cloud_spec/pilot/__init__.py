"""The pilot: what a robot does with camera, instruction and draft model, whatever carries it.

Frames, instructions and the navigator's status in; verified words and the mission's state out. No
ROS here, and no motion (that is ``nav``).
"""
