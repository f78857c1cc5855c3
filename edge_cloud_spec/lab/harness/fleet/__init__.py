"""Many robots and one server, for `bench fleet`: scripted in virtual time, and real clients.

What is measured of them, and compared, is in `bench/fleet`.
"""
