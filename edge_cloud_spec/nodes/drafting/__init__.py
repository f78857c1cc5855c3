"""The parts of the drafter node: its camera watch and its topics."""
