"""Benchmarks: one suite per file or folder, figures as flat rows, ratios within one run.

Suites measure the shipped parts (processes, gRPC, rclpy); nothing here is imported elsewhere.

A new suite is a module of this folder, or a folder with a ``suite.py`` if it has helpers, and a
line in ``command.SUITES``. It has ``OPTIONS`` (arguments of ``add_argument`` by flag) and
``run(args) -> rows``, and may have ``COLUMNS``, the headings of the fields to print.
"""
