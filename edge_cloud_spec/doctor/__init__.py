"""``edge-cloud-spec doctor``: checks this machine, a cloud or a running graph, and gives advice.

One family of checks per file; each yields ``Health``s. Nothing here changes what it checks.
"""
