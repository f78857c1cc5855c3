"""What the docs tests read: Markdown, symbols, command lines."""
