"""Verified text in, bounded motion commands out: the action language, motion and safety.

No ROS here, and no model, so that what may move the robot can be read on its own.
"""
