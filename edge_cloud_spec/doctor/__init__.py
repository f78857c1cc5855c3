"""``edge-cloud-spec doctor``: what this machine, a cloud or a running graph has, and what to do.

One family of checks a file; each gives ``Health``s. Nothing here changes what it looks at.
"""
