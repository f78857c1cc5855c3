"""Plays a recorded run to the real nodes again, and compares their decisions with the recorded
ones."""
