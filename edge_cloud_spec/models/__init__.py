"""Sessions over a vision-language model: prefill, score a chain or a tree, commit, roll back.

Prompts, image preprocessing, tokenizers and quantization belong here. Sampling, acceptance and
anything that knows of a link do not.
"""

from pathlib import Path

# Model.path of a robot without a draft model, which only decodes the verifier's text.
BYTES = "bytes"
OPENAI = "openai:"  # prefix of the URL of an OpenAI-compatible server
VLLM = "vllm:"  # prefix of the URL of a vLLM server that scores drafts
EMBEDDED = Path(__file__).parent / "pair"  # the folder of the embedded target and drafter
FLATS = Path(__file__).parent / "flats"  # of the same, taught to remember earlier frames
ROOMS = Path(__file__).parent / "rooms"  # of a target that was taught furnished rooms
