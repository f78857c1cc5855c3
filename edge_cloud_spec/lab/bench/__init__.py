"""Benchmarks: a suite a file or folder, figures as flat rows, ratios taken within one run.

Suites measure the parts as they ship (processes, gRPC, rclpy); nothing here is imported elsewhere.

A new suite is a module of this folder, or a folder with a ``suite.py`` where it has helpers, and a
line in ``command.SUITES``. It has ``OPTIONS`` (what ``add_argument`` takes for each flag) and
``run(args) -> rows``, and may have ``COLUMNS``, the headings of the fields that a terminal shows.
"""
