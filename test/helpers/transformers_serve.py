"""``transformers serve`` with a checkpoint of the Qwen-VL families, in a process of its own.

Its processor wants torchvision for videos, which need not be there: this one has no video part.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

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
def running(model: str, hold: Path, *options: str) -> Iterator[SimpleNamespace]:
    """This file as a process, once it serves: its url, the lines of its log, and its ``hold``.

    hold: a file; while it is there an answer stops early on. ``--continues`` leaves an assistant's
    last message open.
    """
    from .cloud.grpc_cloud import free_port, until

    port = free_port()
    command = [sys.executable, __file__, model, str(port), str(hold), *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        lines: list[str] = []
        threading.Thread(target=lines.extend, args=(process.stderr,), daemon=True).start()
        until(lambda: process.poll() is not None or any("running on" in line for line in lines))
        assert process.poll() is None, lines
        yield SimpleNamespace(url=f"http://127.0.0.1:{port}/v1", lines=lines, hold=hold)
        process.kill()


def main() -> None:
    """Serve until somebody ends the process."""
    model, port, hold, *options = sys.argv[1:]
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

    def from_pretrained(name, **_):
        tokenizer = AutoTokenizer.from_pretrained(name)
        if "--continues" in options:
            FALLBACKS.clear()  # they know no beginning of an answer
            tokenizer.chat_template = CONTINUES
            pictures = Qwen2VLImageProcessorPil.from_pretrained(name)
            return ImageProcessor(pictures, tokenizer, CONTINUES)
        # Without it the server begins each answer with the prompt: our chat template has no
        # "assistant" after the mark.
        (qwen,) = (one for kinds, one in FALLBACKS.items() if "qwen3_vl" in kinds)
        tokenizer.response_template = {**qwen, "start_anchor": "<|im_start|>"}
        pictures = Qwen2VLImageProcessorPil.from_pretrained(name)
        return ImageProcessor(pictures, tokenizer, tokenizer.chat_template)

    put = DirectStreamer.put

    def held(self, value):
        while Path(hold).exists() and self.total_tokens > 3 and not self._cancelled.is_set():
            time.sleep(0.01)
        try:
            put(self, value)
        except _GenerationCancelled:
            print(f"generation ended after {self.total_tokens} tokens", file=sys.stderr, flush=True)
            raise

    DirectStreamer.put = held
    transformers.AutoProcessor.from_pretrained = from_pretrained
    Serve(model, device="cpu", dtype="float32", host="127.0.0.1", port=int(port))


if __name__ == "__main__":
    main()
