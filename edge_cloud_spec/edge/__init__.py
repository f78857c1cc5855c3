"""The robot's side of a decode: the decoder loop, the drafter it drives and the link's client end.

No ROS here, and no decoding arithmetic (that is ``decoding``).
"""
