"""Shows a run in a browser, live or from a bag, by converting messages to Rerun entities."""
