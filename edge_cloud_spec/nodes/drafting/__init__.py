"""What the drafter node is made of: its camera, its topics and its parameters."""
