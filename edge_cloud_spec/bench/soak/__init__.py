"""``bench soak``: Answer after answer for an hour, with the books kept."""
