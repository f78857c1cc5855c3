"""Messages of the topics, as the demo's log reads them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.wire.codec import encode_client, encode_server
from edge_cloud_spec.wire.messages import DraftMessage, Verdict

INSTRUCTION = "find the red box"
HEADER = SimpleNamespace(stamp=SimpleNamespace(sec=5, nanosec=7))


def message(**fields: Any) -> SimpleNamespace:
    return SimpleNamespace(request_id="r", header=HEADER, **fields)


def seconds(value: float) -> SimpleNamespace:
    return SimpleNamespace(sec=int(value), nanosec=int(value % 1 * 1e9))


def draft(
    base: int, words: list[str], parents: tuple[int, ...] | None = None, hash: int = 1
) -> SimpleNamespace:
    tree = Draft((0,) * len(words), parents)
    payload = encode_client(DraftMessage(PrefixDigest(base, hash), tree, base)).data
    prefix = {"base_length": base, "base_hash": hash}
    return message(round=base, words=words, draft_time=seconds(0.25), payload=payload, **prefix)


def verdict(base: int, *path: int, hash: int = 1) -> SimpleNamespace:
    payload = encode_server(Verdict(PrefixDigest(base, hash), path, 3, "")).data
    prefix = {"base_length": base, "base_hash": hash, "accepted": len(path)}
    return message(kind=0, verify_time=seconds(0.125), text="", payload=payload, **prefix)


def settled(position: int, text: str, tokens: list[int], **fields: Any) -> SimpleNamespace:
    last = {"verified": True, "finished": False, "finish_reason": "", "answer": text}
    last |= {"instruction": INSTRUCTION, **fields}
    return message(position=position, text=text, tokens=tokens, **last)


def outcome(**fields: Any) -> SimpleNamespace:
    place = {"target": "red box", "distance": 0.8, "bearing": 3.0, "reach": 1.0, "at": "red box"}
    state = {"standing": True, "success": True, "x": 0.0, "y": 0.0, "yaw": 0.0}
    return SimpleNamespace(data=json.dumps({**place, **state, **fields}))


def said(text: str) -> SimpleNamespace:
    return SimpleNamespace(data=text)
