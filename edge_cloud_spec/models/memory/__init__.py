"""Keys and values: caches within one bound of bytes, whose they are, prefixes that are shared."""
