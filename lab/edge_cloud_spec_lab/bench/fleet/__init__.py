"""``bench fleet``: many robots and one server, and their figures."""
