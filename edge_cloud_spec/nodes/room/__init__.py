"""What the simulated room publishes."""
