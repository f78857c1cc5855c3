"""The robot's link to the cloud: settings, streams, clock offset and quality.

No decoding and no ROS here.
"""
