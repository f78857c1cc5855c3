"""What drafts from earlier answers give, and what the index that they come from costs."""
