"""What the navigator node is made of: commands to a base, and markers."""
