"""Several verifiers as one: a front places each robot at a replica; Ray runs the replicas.

What verifies is in ``cloud/``, the same in a replica as alone; rounds do not cross the front.
"""
