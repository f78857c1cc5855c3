"""Fine-tunes a pair on conversations in flats."""
