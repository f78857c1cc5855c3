"""Defines the node graph, and starts it as processes where ROS's launch is not used."""
