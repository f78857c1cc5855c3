"""The verifier on the network: streams, access control, metrics, health and logs."""
