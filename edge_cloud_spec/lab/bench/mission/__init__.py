"""How long the simulated robot takes until it moves and until it is there, in virtual time."""
