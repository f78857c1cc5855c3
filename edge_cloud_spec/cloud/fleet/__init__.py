"""Several verifiers behind one address: a router assigns each robot a replica; Ray runs the
replicas.

A replica is the verifier of ``cloud/``; no round passes through the router.
"""
