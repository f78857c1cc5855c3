"""``bench hostile``: A robot beside hostile clients."""
