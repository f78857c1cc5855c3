"""The thread that owns the models: what waits, which sessions share a pass, what is sent."""
