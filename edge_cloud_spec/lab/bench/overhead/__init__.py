"""``bench overhead``: a round's time outside the models, beside bare gRPC and bare rclpy."""
