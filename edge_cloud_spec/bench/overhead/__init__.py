"""``bench overhead``: A round beside bare gRPC and bare rclpy."""
