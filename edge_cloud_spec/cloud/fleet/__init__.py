"""Several verifiers as one: a front places each robot at a replica; Ray runs the replicas.

A replica is the verifier of ``cloud/``; rounds do not cross the front.
"""
