"""A run in a browser, live or from a bag: messages as Rerun's entities. Nothing here decides."""
