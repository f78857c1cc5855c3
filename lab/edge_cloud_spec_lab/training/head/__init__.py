"""A head that drafts for any target: trained on the hidden states of its own answers."""
