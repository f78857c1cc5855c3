"""Observes a run through its topics: logs it, records it, shows it. Nothing here decides."""
