"""What robot and cloud say to each other: the messages, the .proto and the codec between them.

Everything else handles the dataclasses of ``messages``; protobuf ends at ``codec``.
"""
