"""What every node is made with: its parameters, QoS, threads, diagnostics, and its program."""
