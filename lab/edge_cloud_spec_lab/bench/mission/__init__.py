"""Measures how long the simulated robot takes to move and to arrive, in virtual time."""
