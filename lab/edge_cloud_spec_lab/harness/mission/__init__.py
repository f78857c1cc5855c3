"""Missions in virtual time: the simulated robot moves while the embedded pair decodes."""
