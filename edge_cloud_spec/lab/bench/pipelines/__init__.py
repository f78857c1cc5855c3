"""``bench pipelines``: each preset under published costs and links."""
