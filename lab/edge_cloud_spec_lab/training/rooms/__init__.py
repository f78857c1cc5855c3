"""Fine-tunes the pair's target in furnished rooms, where it must go around what is in the way."""
