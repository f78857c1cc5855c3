"""Real nodes, bridges and fakes of a robot for tests of the graph."""
