"""What the drafter node is made of: its camera, its gate, its words, its mission and its health."""
