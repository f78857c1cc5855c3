"""Shows a run in a browser, live or from a bag: converts messages to Rerun entities, no more."""
