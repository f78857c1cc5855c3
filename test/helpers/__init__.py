"""What several tests use: enumeration of random choices, a real gRPC cloud, checkpoints."""
