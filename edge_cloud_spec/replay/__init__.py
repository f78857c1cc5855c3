"""A recorded run played to the real nodes again, and what they decide compared with it."""
