"""The verifier: one robot's session, the thread that owns the models, the gRPC service, fleets.

No ROS here. ``decoding`` defines verdicts; this folder decides when passes run.
"""
