"""``bench pipelines``: Each preset under published costs and links."""
