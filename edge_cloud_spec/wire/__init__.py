"""The messages between robot and cloud, their frames, and the codec between the two.

All other code uses the dataclasses of ``messages``; a relay such as the bridge reads only the head
of a frame (``frames``). Only ``codec`` knows protobuf.
"""
