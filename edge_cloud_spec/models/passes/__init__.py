"""A pass of the text half: rows of several sessions through the layers."""
