"""``bench payload``: serialized bytes a round, up and down."""
