"""A server with vLLM's endpoint for tokens, fed by our own engine: a test's stand-in for vLLM.

It decides as ``vllm serve --enable-scale-out`` does with our logits processor: greedily, by
``coupled`` where a request asks for that, with whole rows and with allowed tokens.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.target_rows import LogitRows
from edge_cloud_spec.models.image import decode_image, patches
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.passes.target_rows import on_host
from edge_cloud_spec.models.prompt import Prompt


class VllmPeer:
    """``asked``: the bodies of all requests. ``fault``: a reply in place of the usual, or None."""

    def __init__(self, checkpoint: Path, *, samples: bool = True) -> None:
        """samples: whether our logits processor is there."""
        self._target = load(checkpoint, threads=1)
        self._lock = threading.Lock()
        self._pictures: dict[tuple[str, str], tuple[np.ndarray, Any]] = {}
        self._samples = samples
        self.asked: list[dict[str, Any]] = []
        self.fault: Any = lambda body: None
        peer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                """Nothing."""

            def do_GET(self) -> None:
                self._reply(200, {"version": "0.0", "object": "list", "data": []})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                peer.asked.append(body)
                self._reply(*(peer.fault(body) or peer.reply(body)))

            def _reply(self, status: int, content: Any) -> None:
                data = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        class Listener(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128  # a draft's nodes come at once

        self._server = Listener(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def reply(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        (part,), params = body["content_parts"], body["sampling_params"]
        name = (body["cache_salt"], part["uuid"])
        if part["url"]:
            png = base64.b64decode(part["url"].partition(",")[2])
            ours = self._target.preprocessing
            image = decode_image(png, ours.spec.max_frame_pixels)
            self._pictures[name] = patches(image, ours.spec, ours.mean, ours.std)
        elif name not in self._pictures:
            text = "Cache miss for image at index 0 but data is not provided."
            return 400, {"error": {"message": text}}
        with self._lock:
            row = self._row(body["token_ids"], *self._pictures[name])
        allowed = params.get("allowed_token_ids")
        if allowed is not None:
            only = np.full(len(row), -np.inf, np.float32)
            only[allowed] = row[allowed]
            row = only
        return 200, {"choices": [self._choice(row, params)]}

    def _row(self, ids: list[int], pixels: np.ndarray, grid: Any) -> np.ndarray:
        """The logits [V] after these tokens, among them one for the picture."""
        count = grid[1] * grid[2] // self._target.preprocessing.spec.merge_size**2
        at = ids.index(self._target.image_id)
        ids = [*ids[:at], *[ids[at]] * count, *ids[at + 1 :]]
        name = hashlib.blake2b(pixels.tobytes(), digest_size=16).digest()
        prompt = Prompt(np.asarray(ids), lambda: pixels, grid, name, b"")
        return on_host(self._target.open(prompt).known_row)

    def _choice(self, row: np.ndarray, params: dict[str, Any]) -> dict[str, Any]:
        if params.get("logprobs") == -1:
            content = [{"token_id": i, "logprob": float(x)} for i, x in enumerate(row)]
            best = content[int(row.argmax())]
            return {"token_ids": [0], "logprobs": {"content": [{**best, "top_logprobs": content}]}}
        coupled = (params.get("extra_args") or {}).get("coupled")
        if coupled is None or not self._samples:
            return {"token_ids": [LogitRows(row[None]).token(-1, GREEDY, 0)]}
        names = ("temperature", "top_k", "top_p", "seed")
        policy = SamplingPolicy(**{name: coupled[name] for name in names})
        row = row[: coupled["vocabulary"]]
        return {"token_ids": [LogitRows(row[None]).token(-1, policy, coupled["position"])]}

    def __enter__(self) -> VllmPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
