"""The pilot: decides from camera frames and an instruction, with or without ROS around it.

Frames, instructions and the navigator's status in; verified words and the mission's state out. No
ROS here, and no motion (that is ``nav``).
"""
