"""Thin ROS 2 nodes: parameters, topics, QoS and threads. All rclpy code is here; no algorithm
is."""
