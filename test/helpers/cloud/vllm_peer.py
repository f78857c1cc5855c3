"""A server with vLLM's endpoint for tokens, fed by our own engine: a test's stand-in for vLLM.

It decides as ``vllm serve --enable-scale-out`` does with our logits processor: greedily, by
``coupled`` where a request asks for that, with whole rows and with allowed tokens. It scores a
prompt as V1 does: what is in its prefix cache has scores that mean nothing, or, every seventh time,
are no numbers, so that the reply is refused as no JSON.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from helpers.cloud.api_peer import DONE, HttpPeer, event

from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.target_rows import LogitRows
from edge_cloud_spec.models.image import decode_image, patches
from edge_cloud_spec.models.load import load
from edge_cloud_spec.models.passes.target_rows import on_host
from edge_cloud_spec.models.prompt import Prompt, PromptImage

BLOCK = 16  # tokens
STEP = 3  # tokens of a step, of a request that is streamed


class VllmPeer(HttpPeer):
    """``asked``: the bodies of all requests. ``fault``: a reply in place of the usual, or None."""

    def __init__(self, checkpoint: Path, *, samples: bool = True, details: bool = True) -> None:
        """samples: whether our logits processor is there. details: whether it says what it found in
        its cache."""
        self._target = load(checkpoint, threads=1)
        self._lock = threading.Lock()
        self._pictures: dict[tuple[str, str], PromptImage] = {}
        self._rows: dict[tuple[Any, ...], np.ndarray] = {}  # by picture and prefix
        self._samples, self._details = samples, details
        self._cached: set[tuple[Any, ...]] = set()  # salts and blocks from a prompt's beginning
        self._scored = 0
        self.started = 1.0e9
        self.speculates = False
        self.penalizes = True  # whether our logits processor is of this version
        self.asked: list[dict[str, Any]] = []
        self.cut: list[dict[str, Any]] = []  # bodies of streams that were closed before their end
        # Replies by their path, and the field ``prompt_token_ids`` of others; a test may add some.
        self.said: dict[str, Any] = {
            "/version": {"version": "0.0"},
            "/v1/models": {"data": [{"id": "target", "max_model_len": 4096}]},
        }
        self.fault: Any = lambda body: None
        super().__init__()

    def on_get(self, path: str) -> tuple[int, dict[str, str], bytes]:
        if path != "/metrics":
            return _json(200, self.said[path])
        count = len(self.asked)
        told = {"process_start_time_seconds": self.started}
        told["vllm:prefix_cache_hits_total"] = count
        if self.speculates:
            told["vllm:spec_decode_num_drafts_total"] = 0
        for part in ("e2e_request_latency", "request_queue_time"):
            told[f"vllm:{part}_seconds_sum"] = 0.01 * count
            told[f"vllm:{part}_seconds_count"] = count
        lines = [f'{name}{{engine="0"}} {value:.1f}\n' for name, value in told.items()]
        return 200, {}, "".join(lines).encode()

    def on_post(self, handler: Any, body: Any) -> None:
        if handler.path == "/tokenize":
            tokens = self._target.tokenizer(body["prompt"])["input_ids"]
            handler.reply(*_json(200, self.said.get(handler.path, {"tokens": tokens})))
            return
        self.asked.append(body)
        status, content = self.fault(body) or self.reply(body)
        if status != 200 or not body.get("stream"):
            handler.reply(*_json(status, content))
            return
        handler.reply(200, {"content-type": "text/event-stream"}, b"")
        try:
            for part in self.steps(content):
                handler.wfile.write(event(part))
            handler.wfile.write(DONE)
        except OSError:
            self.cut.append(body)

    def steps(self, reply: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """A reply as a server streams it that speculates: some tokens a step, then one without."""
        [choice] = reply["choices"]
        tokens, scores = choice["token_ids"], choice["logprobs"]["content"]
        for at in range(0, len(tokens), STEP):
            own = {
                "token_ids": tokens[at : at + STEP],
                "logprobs": {"content": scores[at : at + STEP]},
            }
            yield {"choices": [own]}
        yield {"choices": [{"token_ids": [], "logprobs": {"content": []}}]}

    def reply(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        params = body["sampling_params"]
        seen: list[PromptImage] = []
        for index, part in enumerate(body["content_parts"]):
            name = (body["cache_salt"], part["uuid"])
            if part["url"]:
                self._pictures[name] = self._read(part["url"])
            elif name not in self._pictures:
                text = f"Cache miss for image at index {index} but data is not provided."
                return 400, {"error": {"message": text}}
            seen.append(self._pictures[name])
        with self._lock:
            ids = self._expanded(body["token_ids"], seen)
            cached = self._find(body["cache_salt"], ids)
            if params.get("prompt_logprobs") is not None:
                self._scored += 1
                if cached and self._scored % 7 == 0:
                    text = "Out of range float values are not JSON compliant"
                    return 400, {"error": {"message": text}}
            reply: dict[str, Any] = {
                "choices": [self._choice(ids, seen, params)],
                "usage": {
                    "prompt_tokens_details": {"cached_tokens": cached} if self._details else None
                },
            }
            if params.get("prompt_logprobs") is not None:
                reply["prompt_logprobs"] = self._scores(ids, seen, cached)
        if body.get("return_token_ids"):
            reply["prompt_token_ids"] = self.said.get("prompt_token_ids", ids)
        return 200, reply

    def _find(self, salt: str, ids: list[int]) -> int:
        """How many tokens of a prompt the cache has; it has all their blocks from now on."""
        blocks = [(salt, *ids[:end]) for end in range(BLOCK, len(ids) + 1, BLOCK)]
        known = [len(each) - 1 for each in blocks if each in self._cached and len(each) <= len(ids)]
        self._cached |= set(blocks)
        return max(known, default=0)

    def _scores(self, ids: list[int], seen: list[PromptImage], cached: int) -> list[Any]:
        """The likeliest token before each token of a prompt, and that token's own score."""
        start = 1 + max(
            [cached, *(at for at, one in enumerate(ids) if one == self._target.image_id)]
        )
        rows = on_host(self._open(ids[:start], seen).forward(ids[start:]))
        scores: list[Any] = [None]
        for at, token in enumerate(ids[1:], 1):
            row = rows[at - start] if at >= start else np.roll(rows[0], at)
            best = int(row.argmax())
            told = {token: {"logprob": float(row[token]), "rank": 2}}
            scores.append({**told, best: {"logprob": float(row[best]), "rank": 1}})
        return scores

    def forget(self) -> None:
        """Lose all pictures, and the cache."""
        self._pictures.clear()
        self._cached.clear()

    def _read(self, url: str) -> PromptImage:
        png, ours = base64.b64decode(url.partition(",")[2]), self._target.preprocessing
        image = decode_image(png, ours.spec.max_frame_pixels)
        pixels, grid = patches(image, ours.spec, ours.mean, ours.std)
        digest = hashlib.blake2b(pixels.tobytes(), digest_size=16).digest()
        return PromptImage(digest, grid, lambda: pixels)

    def _expanded(self, ids: list[int], seen: list[PromptImage]) -> list[int]:
        """With a token for each part of a picture, where one is sent for all."""
        merged, grids = self._target.preprocessing.spec.merge_size**2, (each.grid for each in seen)
        out: list[int] = []
        for token in ids:
            grid = next(grids) if token == self._target.image_id else (1, 1, merged)
            out += [token] * (grid[1] * grid[2] // merged)
        return out

    def _open(self, ids: list[int], seen: list[PromptImage]) -> Any:
        """A session of our own engine after these tokens."""
        return self._target.open(Prompt(np.asarray(ids), tuple(seen), b""))

    def _row(self, ids: list[int], seen: list[PromptImage]) -> np.ndarray:
        """Logits [V] after these tokens, computed once: most decodes here go the same way."""
        key = (*(each.digest for each in seen), *ids)
        if key not in self._rows:
            self._rows[key] = on_host(self._open(ids, seen).known_row)
        return self._rows[key]

    def _choice(
        self, ids: list[int], seen: list[PromptImage], params: dict[str, Any]
    ) -> dict[str, Any]:
        if params.get("logprobs") == -1:
            row = self._row(ids, seen)
            content = [{"token_id": i, "logprob": float(x)} for i, x in enumerate(row)]
            best = content[int(row.argmax())]
            return {"token_ids": [0], "logprobs": {"content": [{**best, "top_logprobs": content}]}}
        coupled = (params.get("extra_args") or {}).get("coupled")
        policy, position = GREEDY, 0
        if coupled is not None and self._samples:
            names = ("temperature", "top_k", "top_p", "seed")
            policy = SamplingPolicy(**{name: coupled[name] for name in names})
            position = coupled["position"]
        tokens: list[int] = []
        content = []
        while not tokens or (
            len(tokens) < params["max_tokens"] and tokens[-1] not in params["stop_token_ids"]
        ):
            row = self._row([*ids, *tokens], seen).copy()
            if params.get("allowed_token_ids") is not None:
                only = np.full(len(row), -np.inf, np.float32)
                only[params["allowed_token_ids"]] = row[params["allowed_token_ids"]]
                row = only
            penalty = params.get("repetition_penalty", 1.0)
            if coupled is not None and self._samples:
                row, penalty = row[: coupled["vocabulary"]].copy(), 1.0
                if self.penalizes:
                    penalty = coupled["logits"].get("repetition_penalty", 1.0)
                    row[coupled["logits"].get("suppress_tokens", [])] = -np.inf
            for each in {*ids, *tokens} if penalty != 1 else ():
                row[each] *= penalty if row[each] < 0 else 1 / penalty
            token = LogitRows(row[None]).token(-1, policy, position + len(tokens))
            tokens.append(token)
            content.append({"token_id": token, "logprob": float(row[token]), "top_logprobs": []})
        return {"token_ids": tokens, "logprobs": {"content": content}}


def _json(status: int, content: Any) -> tuple[int, dict[str, str], bytes]:
    text = content if isinstance(content, str) else json.dumps(content)
    return status, {"content-type": "application/json"}, text.encode()
