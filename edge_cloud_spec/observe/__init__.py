"""A run as seen on its topics: observed, written to a bag, logged, shown. Nothing here decides."""
