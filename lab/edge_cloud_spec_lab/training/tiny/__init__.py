"""The embedded tiny pair: its language, tokenizer, architecture, training and evaluation.

Nothing here runs on a robot: the trained weights are in ``models/pair`` and load like any model.
"""
