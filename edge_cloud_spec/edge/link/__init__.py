"""The link to the cloud as the robot has it: its settings, its streams, its clocks and its state.

No decoding and no ROS here.
"""
