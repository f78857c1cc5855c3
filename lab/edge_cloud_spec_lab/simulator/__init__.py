"""The simulator node: a simulated Go2 in its room, with the topics that a real robot has."""
