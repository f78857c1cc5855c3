"""``bench fleet``: many robots and one server, and what is computed of them."""
