"""The report of ``bench pipelines``: who waits for whom, speed over the link, published results.

Pictures are drawn from rows and from decodes in virtual time; nothing is measured here.
"""
