"""The embedded tiny pair: its language, tokenizer, architecture, training and evaluation.

Nothing here runs on a robot: what is trained lies in ``models/pair`` and is loaded like any model.
"""
