"""``bench payload``: Serialized bytes a round."""
