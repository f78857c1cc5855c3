"""The robot's side of a decode: the decoder, its drafts, its planner, and the client of the
verifier.

No ROS here, and no decoding arithmetic (that is ``decoding``).
"""
