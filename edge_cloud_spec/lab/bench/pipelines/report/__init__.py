"""The report of ``bench pipelines``: timelines, speed over the round-trip time, published results.

Plots are drawn from rows and from decodes in virtual time; nothing is measured here.
"""
