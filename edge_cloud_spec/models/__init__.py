"""Sessions over a vision-language model: prefill, score a chain or a tree, commit, roll back.

Prompts, image preprocessing, tokenizers and quantization belong here. Sampling, acceptance and
anything that knows of a link do not.
"""
