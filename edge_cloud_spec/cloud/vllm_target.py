"""A target on a vLLM server, which scores the robots' drafts.

Each node of a draft is a request for one token: the one after prompt, verified tokens and the path
to the node. A chain's requests are sent at once: vLLM batches them, and takes their common prefix
from its cache, the picture included. If the server can score a chain as a prompt, a greedy chain is
one request instead. A tree's first path is sent first, then the branch that the target's tokens
lead to. The server has nothing to roll back, so sessions, rules, verdicts and hand-over work as
with any target.
"""

from __future__ import annotations

import asyncio
import io
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from PIL import Image

from ..decoding.draft import Draft
from ..decoding.policy import GREEDY, SamplingPolicy
from ..decoding.processors import UNADJUSTED, UNPROCESSED, Adjustment
from ..decoding.target_rows import LogitRows, TargetRows, TokenRows
from ..errors import UserError
from ..models.image import data_url, picture_of, target_size
from ..models.openai_server import Unavailable
from ..models.processor import TOO_LONG, Processor
from ..models.prompt import Prompt, PromptImage, PromptSpec
from ..request import Picture
from ..wire.messages import Open
from .model_thread.model_runner import (
    ModelRunner,
    OnPredicted,
    adjustments_of,
    refuse_log_probs,
)
from .model_thread.sessions import HeldSession
from .model_thread.target_session import NotArrived, TargetSession
from .vllm_server import Served, VllmReply, VllmServer
from .vllm_session import STREAM_TOKENS, TokenStream, VllmSession

# Largest vocabulary whose whole distributions are requested: 80 bytes of JSON per token.
MAX_ROW = 8192
MAX_ALLOWED = 1024  # token ids in one request; beyond, the unrestricted token is requested first
HITS = "vllm:prefix_cache_hits_total"  # tokens that its prefix cache has served
DRAFTS = "vllm:spec_decode_num_drafts_total"  # of its own; there if it speculates
# After these times the server is asked again who it is: before a request, and after replies.
QUIET_S, IDENTITY_CHECK_S = 1.0, 0.25
# vLLM's errors for a forgotten picture name, and for a server that caches no pictures.
FORGOTTEN_ERRORS = ("Cache miss", "Failed to apply")
# Samples of one position at a high temperature; if all are equal, it does not sample.
PROBE_SEEDS = 8
PROBE_TEMPERATURE = 100.0
PROBE_CHAINS = 3  # tries to have a chain scored
# The probe text, which both tokenizers must tokenize alike.
SPOKEN = "Find the blue box: 12.5 m, 'left' – stop;"

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Node:
    """A node of a draft: the path to it, and how the logits after it change; vLLM applies the
    penalties itself."""

    path: tuple[int, ...] = ()
    adjustment: Adjustment = UNADJUSTED


class VllmModels(ModelRunner):
    """A ``ModelRunner`` for a target on vLLM; it runs a processor only."""

    def __init__(
        self,
        target: Processor,
        spec: PromptSpec,
        server: VllmServer,
        served: Served,
    ) -> None:
        """served: the server's identity as it reported it; call ``probe`` before use."""
        super().__init__(target, spec)
        self.target, self.server, self._served = target, server, served
        self._looked_s = 0.0  # when the server was last known to be the same, monotonic time, s
        self._looking = asyncio.Lock()
        self._samples = False  # whether the server implements ``coupled`` (see ``vllm_plugin``)
        self._chains = False  # whether the server can score a chain as a prompt
        self._speculates = False  # whether the server has drafts of its own
        self.rows = spec.vocabulary <= MAX_ROW  # whether whole distributions can be requested
        target.crop(spec.vocabulary)

    def check(self, opening: Open) -> None:
        """Raise UserError if this server cannot serve the request."""
        refuse_log_probs(opening, "on vLLM")
        if opening.rule == "rejection" and not self.rows:
            raise UserError(
                f"this verifier's target is on vLLM, which tells whole distributions of at most "
                f"{MAX_ROW} tokens: take rule greedy or coupled"
            )
        if opening.rule != "greedy" and not (self.rows or self._samples):
            remedy = (
                "; it has no logits processors, as it speculates by itself"
                if self._speculates
                else ", or start it with --logits-processors "
                "edge_cloud_spec.cloud.vllm_plugin:Coupled, of this version"
            )
            raise UserError(
                "this verifier's vLLM does not sample as rule coupled does: take rule greedy"
                + remedy
            )
        super().check(opening)

    def open(self, opening: Open, prompt: Prompt) -> TargetSession:
        """Send the prompt at once: the server reads it while the robot drafts."""
        self._check_length(len(prompt.input_ids))
        self._check_text(opening.verified)
        session = VllmSession(opening, prompt, self.target.image_id, prompt.owner)
        first = partial(self.ask, session, Node(), shown=1)
        session.first = self.server.submit(self._of_the_same(first))
        return session

    def forward(
        self, batch: Sequence[HeldSession], on_predicted: OnPredicted
    ) -> list[TargetRows | Exception]:
        """For each session its logits, or NotArrived until the server has sent them all."""
        return [self._forward(session) for session in batch]

    def _forward(self, held: HeldSession) -> TargetRows | Exception:
        session, due = held.target, held.due
        assert isinstance(session, VllmSession)
        try:
            self._check_text(session.tokens)
            replies = session.score(due.draft, partial(self._begin_round, held, session))
        except UserError as error:
            return error
        if replies is None:
            return NotArrived()
        if len(replies) > len(due.draft) + 1:  # the server generated beyond the draft
            due.draft, due.source = Draft(tuple(replies[:-1])), "target"
            session.scored = due.draft
        elif self._wants_rows(held.opening):
            return LogitRows(np.stack(replies), adjustments_of(held))
        return TokenRows(replies, "vLLM tells no whole distributions: take rule greedy or coupled")

    def _begin_round(self, held: HeldSession, session: VllmSession) -> Future[list[Any]]:
        draft, adjusted = held.due.draft, adjustments_of(held) or (lambda _: UNADJUSTED)
        nodes = [Node(draft.tokens_to(node), adjusted(node)) for node in range(-1, len(draft))]
        excluding = replace(self.spec.logits, repetition_penalty=1.0) != UNPROCESSED
        excludes = held.opening.policy.grammar or excluding
        if held.generating and not (draft or excludes):
            asked: Any = self._of_the_same(partial(self._run, session), session)
        else:
            asked = self._of_the_same(partial(self._score, session, draft, nodes))
        replies = self.server.submit(asked)
        replies.add_done_callback(lambda _: self.on_news(held))
        return replies

    async def _of_the_same(
        self, ask: Callable[[], Awaitable[T]], generates: VllmSession | None = None
    ) -> T:
        """The replies, once the server has said after them, now and then and at the end of an
        answer, that it is still the same; raises UserError.

        generates: whose stream they are from; that it has begun is looked at once.
        """
        from openai import APIError

        await self._look_again(QUIET_S)
        known = self._served.started
        try:
            replies = await ask()
        except APIError:  # it may be ending
            self._looked_s = 0.0
            raise
        told = replies if isinstance(replies, list) else ()
        said = [token for token in told if isinstance(token, int)]
        self._check_text(said)
        ends = any(token in self.spec.end_ids for token in said)
        stream = generates and generates.stream
        age_s = time.monotonic() - stream.began_s if stream else IDENTITY_CHECK_S
        await self._look_again(0.0 if ends else age_s)
        if self._served.started != known:
            raise Unavailable(f"the vLLM server at {self.server.url} was started again: try again")
        return replies

    async def _score(self, session: VllmSession, draft: Draft, nodes: Sequence[Node]) -> list[Any]:
        """The replies for these nodes, the prefix first; None for nodes off the target's path.

        Raises UserError, or errors of the ``openai`` package.
        """
        session.cut()
        # First, so that the other requests find the prompt in its cache.
        first = await asyncio.wrap_future(session.first)
        policy = session.opening.policy
        free: dict[tuple[int, ...], Any] = {}  # results after these paths, no token excluded
        if not session.tokens and (nodes[0].adjustment.allowed is None or not self._cuts(policy)):
            free[()] = first
        if self._wants_rows(session.opening):
            return await _all([self.ask(session, node, free.get(node.path)) for node in nodes])
        said: dict[int, Any] = {}
        at: int | None = -1
        while at is not None:
            if at not in said:
                line = [at]  # down to a leaf, the first proposed child each time
                while nodes[at + 1].path not in free and (below := self._text(draft, line[-1])):
                    line.append(below[0])
                if len(line) > 1 and self._chains and policy.temperature == 0:
                    free |= await self._chain(session, nodes[line[-1] + 1].path)
                places = [nodes[node + 1] for node in line]
                asked = [self.ask(session, place, free.get(place.path)) for place in places]
                said |= zip(line, await _all(asked), strict=True)
            token = said[at]
            below = self._text(draft, at)
            at = next((child for child in below if draft.tokens[child] == token), None)
        return [said.get(node) for node in range(-1, len(draft))]

    def _text(self, draft: Draft, node: int) -> list[int]:
        """The children of a node that do not stand for pictures, which the target never says."""
        pictures = self.target.picture_ids
        return [child for child in draft.children(node) if draft.tokens[child] not in pictures]

    async def _run(self, session: VllmSession) -> list[Any]:
        """The target's next tokens without drafts, as far as its stream has them."""
        first = await asyncio.wrap_future(session.first)
        if not session.tokens or self._wants_rows(session.opening):
            return [first if not session.tokens else await self.ask(session, Node())]
        under_way = session.stream
        if under_way is None or under_way.length != len(session.tokens):
            session.cut()
            under_way = session.stream = self._stream(session)
        tokens = await under_way.take()
        if not tokens:  # it was ahead, or as long as a stream may be
            session.stream = under_way = self._stream(session)
            tokens = await under_way.take()
        cropped = (at for at, token in enumerate(tokens) if token >= self.spec.vocabulary)
        known = tokens[: next(cropped, len(tokens))]
        if len(known) < len(tokens):  # the stream goes on after a token that is not in ours
            session.cut()
            session.stream = None
        return known or [await self.ask(session, Node(), next(iter(tokens), None))]

    def _stream(self, session: VllmSession) -> TokenStream:
        said, most = len(session.tokens), self.spec.max_tokens
        asked = self._rule(session, (), session.opening.policy) | {
            "max_tokens": min(STREAM_TOKENS, min(session.opening.max_tokens or most, most) - said),
            "stop_token_ids": self.spec.end_ids,
        }
        return TokenStream(said, self._sent(self.server.stream, session, (), asked))

    async def _chain(
        self, session: VllmSession, path: tuple[int, ...]
    ) -> dict[tuple[int, ...], int]:
        """The most likely token after each node of a path, by one request, as far as the server
        scores it."""
        from openai import BadRequestError

        asked = {"logprobs": 0, "prompt_logprobs": 1, "skip_reading_prefix_cache": False}
        try:
            reply = await self._reply(session, path, asked)
            [last] = reply.tokens()
        except (BadRequestError, UserError):  # for example a NaN score, which JSON does not have
            return {}
        length = len(session.prompt.input_ids) + len(session.tokens) + len(path)
        found = {path[:at]: token for at, token in reply.likeliest_on(path, length).items()}
        return {**found, path: last}

    async def ask(
        self,
        session: VllmSession,
        node: Node,
        free: Any = None,
        *,
        shown: int = 0,
    ) -> Any:
        """Ask for the logits after a node if the rule needs them, else for the token.

        free: that result with no token excluded, if it is known already. shown: see ``_sent``.
        """
        if self._wants_rows(session.opening):
            pictures = [each for each in self.target.picture_ids if each < self.spec.vocabulary]
            if not {*pictures}.isdisjoint(node.path):
                return np.zeros(self.spec.vocabulary, np.float32)  # of a node that is not accepted
            if free is None:
                reply = await self._reply(session, node.path, {"logprobs": -1}, shown)
                free = reply.row(self.spec.vocabulary)
                free[pictures] = -np.inf
            return free
        policy, mask, allowed = session.opening.policy, node.adjustment.allowed, None
        if mask is not None:
            allowed = np.flatnonzero(mask).tolist()
            if len(allowed) == 1:
                return allowed[0]
        few = allowed is not None and (len(allowed) <= MAX_ALLOWED or self._cuts(policy))
        if free is None and not few:
            free = await self._token(session, node.path, policy, None, shown)
        # The winner among all tokens also wins among the allowed ones, if it is one of them.
        is_known = free is not None and free < self.spec.vocabulary
        if is_known and (mask is None or mask[free]):
            return free
        if allowed is None:
            allowed = list(range(self.spec.vocabulary))
        return await self._token(session, node.path, policy, allowed, shown)

    async def _token(
        self,
        session: VllmSession,
        path: tuple[int, ...],
        policy: SamplingPolicy,
        allowed: Sequence[int] | None,
        shown: int = 0,
    ) -> int:
        asked = self._rule(session, path, policy)
        if allowed is not None:
            asked["allowed_token_ids"] = allowed
        reply = await self._reply(session, path, asked, shown)
        [token] = reply.tokens()
        if allowed is not None and token not in allowed:
            raise reply.nonsense("says a token that it may not")
        return token

    def _rule(
        self, session: VllmSession, path: tuple[int, ...], policy: SamplingPolicy
    ) -> dict[str, Any]:
        """The request's sampling parameters for this policy after a path."""
        penalty = self.spec.logits.repetition_penalty
        if policy.temperature == 0:
            return {"logprobs": 0, "repetition_penalty": penalty}
        coupled = {
            "temperature": policy.temperature,
            "top_k": policy.top_k,
            "top_p": policy.top_p,
            "seed": policy.seed,
            "position": len(session.tokens) + len(path),
            "vocabulary": self.spec.vocabulary,
            "logits": {"repetition_penalty": penalty},
        }
        return {"logprobs": 0, "extra_args": {"coupled": coupled}}

    async def _reply(
        self,
        session: VllmSession,
        path: tuple[int, ...],
        parameters: dict[str, Any],
        shown: int = 0,
        **more: Any,
    ) -> VllmReply:
        """The reply to one request, as ``_sent`` sends it."""
        return await self._sent(self.server.generate, session, path, parameters, shown, **more)

    async def _sent(
        self,
        send: Callable[[dict[str, Any]], Awaitable[T]],
        session: VllmSession,
        path: tuple[int, ...],
        parameters: dict[str, Any],
        shown: int = 0,
        **more: Any,
    ) -> T:
        """What ``send`` gives for a request with the ``shown`` newest pictures, and the names of
        those before.

        If the server has forgotten one of these, all are sent.
        """
        from openai import BadRequestError

        images = session.prompt.images
        unsent = max(0, len(images) - shown)
        urls = [*[None] * unsent, *map(self._picture, images[unsent:])]
        body = {
            "token_ids": [*session.prompt_ids, *session.tokens, *path],
            "content_parts": [
                {"type": "image_url", "uuid": uuid, "url": url}
                for uuid, url in zip(session.pictures, urls, strict=True)
            ],
            "cache_salt": session.salt,
            "sampling_params": {
                "temperature": 0,
                "max_tokens": 1,
                "detokenize": False,
                "ignore_eos": True,
                **parameters,
            },
            **more,
        }
        try:
            return await send(body)
        except BadRequestError as error:
            if not (unsent and any(why in str(error) for why in FORGOTTEN_ERRORS)):
                raise
            return await self._sent(send, session, path, parameters, len(images), **more)

    async def _look_again(self, age_s: float) -> None:
        """Ask the server who it is, unless it has said so within ``age_s``. A restarted one, which
        may have another model or lack our logits processor, is probed; raises UserError if it
        cannot replace the earlier one."""
        due = time.monotonic() - age_s
        async with self._looking:
            if self._looked_s > due:
                return  # another request has looked already
            asked_s = time.monotonic()
            served = await self.server.served()
            if replace(served, started=self._served.started) != self._served:
                raise UserError(
                    f"the vLLM server at {self.server.url} serves {served.model} now, by version "
                    f"{served.version}: start this verifier again, too"
                )
            if served.started != self._served.started:
                await self._probe()
                self._served = served
            self._looked_s = asked_s

    @staticmethod
    def _cuts(policy: SamplingPolicy) -> bool:
        """Whether top-k or top-p apply. Tokens are excluded before, which changes their result."""
        return policy.temperature > 0 and policy.truncates

    def _wants_rows(self, opening: Open) -> bool:
        return opening.rule == "rejection" or (opening.policy.temperature > 0 and not self._samples)

    def _picture(self, image: PromptImage) -> str:
        """The picture at the target's size, losslessly encoded as a URL. Raises UserError where
        vLLM, which resizes what it gets, would make another size of it."""
        ours = self.target.preprocessing
        pixels = picture_of(image.pixels(), image.grid, ours.spec, ours.mean, ours.std)
        high, wide, _ = pixels.shape
        if target_size(high, wide, ours.spec) != (high, wide):
            raise UserError(
                f"vLLM would resize this picture again, as {ours.spec.min_pixels} and "
                f"{ours.spec.max_pixels}, the checkpoint's least and most pixels, are too close: "
                "send pictures of another shape, or serve the checkpoint without vLLM"
            )
        png = io.BytesIO()
        Image.fromarray(pixels).save(png, "PNG", compress_level=1)
        return data_url(png.getvalue())

    def _check_text(self, answer: Sequence[int]) -> None:
        """Raise UserError for tokens that stand for pictures: vLLM would look for them, and end."""
        if found := self.target.picture_ids.intersection(answer):
            raise UserError(
                f"token {min(found)} stands for a picture, and an answer is text: vLLM cannot go "
                "on after it"
            )

    def _check_length(self, prompt: int) -> None:
        if (needed := prompt + self.spec.max_tokens) > self._served.length:
            raise UserError(
                f"{TOO_LONG} {prompt} tokens, which with its answer do not fit into the "
                f"{self._served.length} of the vLLM server: start it with --max-model-len {needed} "
                "or more, or send less text"
            )

    def probe(self) -> None:
        """Try a known request, and find out whether the server implements ``coupled``.

        UserError: it rejects our requests, or serves another model than our checkpoint.
        """
        self.server.submit(self._probe()).result()

    async def _probe(self) -> None:
        picture = io.BytesIO()
        Image.new("RGB", (64, 64), (90, 60, 30)).save(picture, "JPEG")
        shown = [Picture.of(picture.getvalue())] if self.spec.pictures else []
        request = self.spec.request(*shown, "find the door")
        opening = Open(0, request, GREEDY, "greedy")
        prompt = self.speaker.prompt(request, self.spec)
        self._check_length(len(prompt.input_ids))
        ours = self.target.tokenizer(SPOKEN, add_special_tokens=False)["input_ids"]
        if (theirs := await self.server.tokens_of(SPOKEN)) != ours:
            raise self._other(f"tokenizer ({SPOKEN!r} is {theirs} there, {ours} here)")
        # A new name, so that no earlier probe is in the cache.
        salt, image_id = secrets.token_hex(8), self.target.image_id
        session = VllmSession(opening, prompt, image_id, salt)
        reply = await self._reply(session, (), {}, shown=1, return_token_ids=True)
        theirs = reply.content.get("prompt_token_ids")
        if theirs != prompt.input_ids.tolist():
            count = len(theirs) if isinstance(theirs, list) else 0
            raise self._other(
                f"processor: a prompt is {count} tokens there, {len(prompt.input_ids)} here"
            )
        before = await self.server.metric(HITS)
        self._speculates = await self.server.metric(DRAFTS) is not None
        policies = [SamplingPolicy(PROBE_TEMPERATURE, seed=seed) for seed in range(PROBE_SEEDS)]
        said = [
            await self._token(session, (), policy, None) for policy in (GREEDY, GREEDY, *policies)
        ]
        if said[0] != said[1]:
            log.warning(
                "%s says %s for the same prompt: its answers depend on the load, so that "
                "no two decodes need be equal",
                self.server.url,
                said[:2],
            )
        if await self.server.metric(HITS) == before:
            log.warning(
                "%s computes each prompt anew: give it --enable-prefix-caching, and a --block-size "
                "below the %d tokens of a prompt",
                self.server.url,
                len(prompt.input_ids),
            )
        self._samples = len(set(said[1:])) > 1
        penalizes = self.spec.logits.repetition_penalty != 1
        if self._samples and penalizes:  # an older processor knows of no penalties
            asked = self._rule(session, (), policies[0])
            asked["extra_args"]["coupled"]["logits"] = {"suppress_tokens": [said[2]]}
            self._samples = (await self._reply(session, (), asked)).tokens() != [said[2]]
        path = (said[0], (said[0] + 1) % self.spec.vocabulary, said[0])
        scored: dict[tuple[int, ...], int] = {}
        for _ in range(0 if penalizes else PROBE_CHAINS):  # scores are without penalties
            # What its cache has may be scored as no number; then the whole reply is refused.
            if len(scored := await self._chain(session, path)) >= len(path):
                break
        plain = [await self._token(session, path[:at], GREEDY, None) for at in range(len(path) + 1)]
        agree = all(plain[len(start)] == token for start, token in scored.items())
        self._chains = agree and len(scored) >= len(path)
        if not self._chains and not penalizes:
            log.warning(
                "%s is asked for each node of a draft: it does not score a chain as a prompt (is "
                "--enable-prompt-tokens-details given?)",
                self.server.url,
            )

    def _other(self, what: str) -> UserError:
        return UserError(
            f"the vLLM server at {self.server.url} has another {what}: give --checkpoint the "
            "directory of the very model that it serves"
        )


async def _all(asked: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Await all and return their results; if one fails, cancel the others."""
    tasks = [asyncio.ensure_future(each) for each in asked]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
