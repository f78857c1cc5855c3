"""Verified text in, bounded motion commands out: the action language, motion and safety.

No ROS here, and no model: what moves the robot must be readable on its own.
"""
