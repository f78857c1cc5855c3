"""Sessions over a vision-language model: prefill, score a chain or a tree, commit, roll back.

Prompts, image preprocessing, tokenizers and quantization belong here. Sampling, acceptance and
anything that knows of a link do not.
"""

from pathlib import Path

BYTES = "bytes"  # names no draft model: a robot that only reads a verifier's words
OPENAI = "openai:"  # before the address of a server that a model is behind
VLLM = "vllm:"  # before the address of a vLLM server that scores drafts
EMBEDDED = Path(__file__).parent / "pair"  # the folder of the embedded target and drafter
