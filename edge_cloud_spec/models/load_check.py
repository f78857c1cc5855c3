"""Compares a loaded model with transformers' own, once: what it asks for and we lack shows."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from ..errors import UserError, library_errors
from .image import grid_of
from .kv_memory import KvMemory
from .processor import SHOWN_PICTURE_PX, Processor, first_request
from .prompt import Prompt, logits_processors
from .vlm import Vlm

COMPARED_TOKENS = 3  # of the answer that is compared
# Of pictures of which only the patches are counted.
COUNTED_PICTURES_PX = ((640, 480), (1280, 720), (4000, 3000))
PIXELS_APART = 0.05  # the largest mean difference of pixel values
REMEDY = "take all files as published, or another dtype, device or quantization"
PICTURES_REMEDY = "take the preprocessor_config.json of the model that it was tuned from"


def generation_inputs(model: Any, prompt: Prompt) -> dict[str, torch.Tensor]:
    """Convert a prompt to arguments of transformers' ``generate`` (it places pictures by token
    types)."""
    ids = torch.from_numpy(prompt.input_ids)[None]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if prompt.images:
        pixels = np.concatenate([image.pixels() for image in prompt.images])
        inputs |= {
            "pixel_values": torch.from_numpy(np.ascontiguousarray(pixels)),
            "mm_token_type_ids": (ids == model.config.image_token_id).long(),
            "image_grid_thw": torch.tensor([image.grid for image in prompt.images]),
        }
    return {name: value.to(model.device) for name, value in inputs.items()}


class FirstAnswer:
    """What transformers' own model answers to a request, before our engine takes its weights."""

    def __init__(self, model: Any, processor: Processor, directory: Path, own: bool) -> None:
        """own: with the checkpoint's generation_config.json. UserError: the model fails, or our
        pictures differ."""
        from transformers import AutoImageProcessor, GenerationConfig

        self._fails = f"the model in {directory} gives no first answer"
        with library_errors(self._fails, PICTURES_REMEDY):
            self._spec = processor.spec(COMPARED_TOKENS)
            self._prompt = processor.prompt(first_request(self._spec), self._spec)
            if processor.reads_pictures:
                self._compare_pictures(AutoImageProcessor.from_pretrained(directory))
        with library_errors(self._fails, REMEDY), torch.inference_mode():
            if not own:
                model.generation_config = GenerationConfig()
            self._reference = model.generate(
                **generation_inputs(model, self._prompt),
                eos_token_id=list(self._spec.end_ids),
                pad_token_id=self._spec.end_ids[0],
                do_sample=False,
                max_new_tokens=COMPARED_TOKENS,
                return_dict_in_generate=True,
                output_logits=True,
                output_scores=True,
            )

    def _compare_pictures(self, theirs: Any) -> None:
        (image,), spec = self._prompt.images, self._spec.image
        shown = Image.open(io.BytesIO(first_request(self._spec).pictures[0].data))
        values = theirs(images=[shown], return_tensors="np")["pixel_values"]
        for width, height in (SHOWN_PICTURE_PX, *COUNTED_PICTURES_PX):
            ours = math.prod(grid_of(height, width, spec))
            count = theirs.get_number_of_image_patches(height, width)
            alike = ours == count and values.shape == image.pixels().shape
            if not alike or np.abs(values - image.pixels()).mean() > PIXELS_APART:
                raise UserError(
                    f"{self._fails}: a picture of {width}x{height} is {ours} patches here and "
                    f"{count} in transformers, or of other values; {PICTURES_REMEDY}"
                )

    def compare(self, vlm: Vlm, tolerance: float) -> None:
        """Raise UserError if our engine computes something else with the same weights.

        tolerance: see ``_apart``.
        """
        answer = self._reference.sequences[0, len(self._prompt.input_ids) :].tolist()
        processors = logits_processors(self._spec, self._prompt, None)
        expected = zip(answer, self._reference.logits, self._reference.scores, strict=True)
        with library_errors(self._fails, REMEDY):
            session = vlm.open(self._prompt)
            for at, (token, logits, scores) in enumerate(expected):
                if not logits.std() > 0:  # NaN, too
                    raise UserError(
                        f"{self._fails}: its logits are no numbers, or all alike, in transformers, "
                        "too; fetch or merge its weights again, or take another dtype"
                    )
                row = session.logits_after(-1)
                if not _apart(row, logits) <= tolerance:
                    raise UserError(
                        f"{self._fails}: its logits are others than in transformers, as something "
                        "in config.json is not implemented (quantized inputs, for example); take "
                        "the published checkpoint in bfloat16"
                    )
                row = row if processors is None else processors.after(answer[:at]).of(row)
                if not _apart(row, scores) <= tolerance:
                    raise UserError(
                        f"{self._fails}: something in generation_config.json is not applied; "
                        "remove it there, or give --generation-config none"
                    )
                session.extend([min(token, vlm.vocabulary - 1)])
        vlm.use_memory(KvMemory())  # without the prompt


def _apart(ours: NDArray[np.float32], reference: torch.Tensor) -> float:
    """The standard deviation of the difference from transformers' logits [1, W], W >= V, in theirs;
    infinite where other tokens are excluded."""
    theirs = reference[0, : len(ours)].float().cpu().numpy()
    known = np.isfinite(theirs)
    if (np.isfinite(ours) != known).any():
        return math.inf
    return float((ours[known] - theirs[known]).std() / theirs[known].std())
