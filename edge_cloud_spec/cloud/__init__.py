"""The cloud's side: verification of one session, the worker that owns the models, the gRPC service.

No ROS here. What a verdict is follows from ``decoding``; when a pass runs is decided here.
"""
