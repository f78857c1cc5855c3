"""The node graph, defined once, and started as processes where ROS's launch does not do it."""
