"""Runs the node graph, or any programs, as processes of this machine, and watches its topics."""
