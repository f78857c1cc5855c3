"""What the cloud bridge is made of: streams, and wire messages as ROS messages."""
