"""Sessions over a vision-language model: prefill, score a chain or a tree, commit, roll back.

Prompts, image preprocessing, tokenizers and quantization belong here. Sampling, acceptance and
anything that knows of a link do not.
"""

from pathlib import Path

# Model.path of a robot without a draft model, which only decodes the verifier's text.
BYTES = "bytes"
OPENAI = "openai:"  # prefix of the URL of an OpenAI-compatible server
VLLM = "vllm:"  # prefix of the URL of a vLLM server that scores drafts
SHIPPED = Path(__file__).parent  # the folder of the models that the package brings
EMBEDDED = SHIPPED / "pair"  # the folder of the embedded target and drafter
FLATS = SHIPPED / "flats"  # of the same, taught to remember earlier frames
ROOMS = SHIPPED / "rooms"  # of a target that was taught furnished rooms
