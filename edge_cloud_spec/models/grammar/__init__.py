"""Grammars over a tokenizer's tokens, by llguidance (the extra ``grammar``); no model."""
