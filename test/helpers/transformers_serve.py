"""``transformers serve`` with a checkpoint of the Qwen-VL families, in a thread.

Its processor wants torchvision for videos, which need not be there: this one has no video part.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from .cloud.grpc_cloud import free_port, until

# That of the embedded pair, but for the end of a last message of the assistant's.
CONTINUES = (
    "{% for message in messages %}{% if message.role != 'system' %}"
    "{% if message.role == 'assistant' %}<|im_start|>{% endif %}"
    "{% for part in message.content %}{% if part.type == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}{% endfor %}"
    "{% if message.role == 'assistant' and not loop.last %}<|im_end|>{% endif %}"
    "{% endif %}{% endfor %}{% if messages[-1].role != 'assistant' %}<|im_start|>{% endif %}"
)


@contextmanager
def running(model: str, hold: Path, continues: bool = False) -> Iterator[SimpleNamespace]:
    """The server, once it serves: its url, what was ``cut`` of its generations, and its ``hold``.

    hold: a file; while it is there an answer stops early on. continues: an assistant's last message
    is left open.
    """
    import transformers
    from transformers import AutoTokenizer, Qwen2VLImageProcessorPil, Qwen2VLProcessor
    from transformers.cli.serve import Serve
    from transformers.cli.serving.utils import _RESPONSE_TEMPLATE_FALLBACKS as FALLBACKS
    from transformers.cli.serving.utils import DirectStreamer, _GenerationCancelled

    class ImageProcessor(Qwen2VLProcessor):
        def __init__(self, image_processor=None, tokenizer=None, chat_template=None):
            super().__init__(image_processor, tokenizer, None, chat_template)

        @classmethod
        def get_attributes(cls):
            return ["image_processor", "tokenizer"]

    (qwen,) = (one for kinds, one in FALLBACKS.items() if "qwen3_vl" in kinds)

    def from_pretrained(name: str, **_: object) -> Any:
        tokenizer = AutoTokenizer.from_pretrained(name)
        if continues:
            tokenizer.chat_template = CONTINUES
        else:
            # Without it the server begins each answer with the prompt: our chat template has no
            # "assistant" after the mark.
            tokenizer.response_template = {**qwen, "start_anchor": "<|im_start|>"}
        pictures = Qwen2VLImageProcessorPil.from_pretrained(name)
        return ImageProcessor(pictures, tokenizer, tokenizer.chat_template)

    put, cut = DirectStreamer.put, list[int]()

    def held(self: Any, value: Any) -> None:
        while hold.exists() and self.total_tokens > 3 and not self._cancelled.is_set():
            time.sleep(0.01)
        try:
            put(self, value)
        except _GenerationCancelled:
            cut.append(self.total_tokens)
            raise

    port = free_port()
    with pytest.MonkeyPatch.context() as patch:
        for kinds in list(FALLBACKS) if continues else ():  # they know no beginning of an answer
            patch.delitem(FALLBACKS, kinds)
        patch.setattr(DirectStreamer, "put", held)
        patch.setattr(transformers.AutoProcessor, "from_pretrained", from_pretrained)
        at = {"host": "127.0.0.1", "port": port, "non_blocking": True}
        serve = Serve(model, device="cpu", dtype="float32", **at)
        try:
            until(lambda: serve.server.started)
            yield SimpleNamespace(url=f"http://127.0.0.1:{port}/v1", cut=cut, hold=hold)
        finally:
            hold.unlink(missing_ok=True)
            serve.kill_server()
