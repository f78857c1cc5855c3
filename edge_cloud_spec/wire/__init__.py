"""What robot and cloud say to each other: the messages, their frames, and the codec between them.

Everything else handles the dataclasses of ``messages``; who only passes a message on reads the head
of its frame (``frames``). Protobuf ends at ``codec``.
"""
