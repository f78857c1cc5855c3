"""Defines the node graph, and decides what follows when one of its processes ends."""
