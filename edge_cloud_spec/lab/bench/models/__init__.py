"""``bench models``: what two checkpoints come to on pictures of one's own."""
