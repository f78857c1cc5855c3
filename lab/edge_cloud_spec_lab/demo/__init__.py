"""The demo: a robot follows an instruction in a simulated room, live and in a report.

Nothing here decides or moves; the report is made from received topics only.
"""
