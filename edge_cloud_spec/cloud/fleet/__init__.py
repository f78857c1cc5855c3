"""Several verifiers as one: a router places each robot at a replica; Ray runs the replicas.

A replica is the verifier of ``cloud/``; rounds do not cross the router.
"""
