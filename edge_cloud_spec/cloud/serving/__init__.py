"""The verifier on the network: streams, who may decode, what is measured, health and logs."""
