"""The common parts of all nodes: parameters, QoS, threads, diagnostics, main program."""
