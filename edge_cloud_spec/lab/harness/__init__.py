"""What stands in for machines and links in benchmarks and tests: emulated links, clocks, models.

No robot runs any of it, and no figure is made here: suites are in ``bench``.
"""
