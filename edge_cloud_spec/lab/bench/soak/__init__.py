"""``bench soak``: answers for an hour, with the messages of both sides counted."""
