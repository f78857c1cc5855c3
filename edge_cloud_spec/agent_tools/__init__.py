"""Tools for an agent, by the Model Context Protocol: follow an instruction, stop, status, describe.

An agent is one more operator: it publishes what an operator would, and no tool releases a stop.
"""
