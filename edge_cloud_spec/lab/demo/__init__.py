"""The demo: a robot follows an instruction in a simulated room, live and in a report.

Nothing here decides or moves; all that is reported was received on topics.
"""
