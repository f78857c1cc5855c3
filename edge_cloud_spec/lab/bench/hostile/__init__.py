"""``bench hostile``: a robot's decode times beside hostile clients."""
