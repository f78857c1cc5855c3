"""Tokens of the models that the lab makes and runs."""

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
"""Of the tokenizers of the tiny pair and of random checkpoints, as Qwen's VL models have them."""

ANSWER_TOKENS = 48
"""At most, of an answer of the embedded pair."""
