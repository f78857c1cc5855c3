"""Speculative decoding as pure functions on distributions, chains and trees.

numpy only: no I/O, no threads, no ROS, no torch. One idea of one paper per file.
"""
