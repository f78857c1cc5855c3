"""Many robots and one server, for `bench fleet`: scripted in virtual time, or real clients.

`bench/fleet` computes their figures.
"""
