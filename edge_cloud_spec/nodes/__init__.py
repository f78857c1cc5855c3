"""Thin ROS 2 nodes: parameters, topics, QoS, threads. Only here is rclpy, and no algorithm is."""
