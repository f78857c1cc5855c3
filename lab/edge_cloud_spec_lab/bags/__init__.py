"""Reads bags without a full ROS: ours, and those of others. The package itself only writes them."""
