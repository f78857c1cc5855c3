"""Robots that a verifier has to bear: hostile ones, and a bystander who must not notice them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import grpc
import grpc.aio
from fuzz import Broken
from fuzz.drafts import VOCABULARY, Place, frame_of, opening_of, proper_draft
from fuzz.frames import hostile
from fuzz.target import JPEG, own_answer

from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.wire import decode_pb2 as pb
from edge_cloud_spec.wire.channel import METHOD
from edge_cloud_spec.wire.codec import (
    decode_client,
    decode_server,
    encode_client,
    read_client,
    read_server,
)
from edge_cloud_spec.wire.messages import (
    Close,
    DraftMessage,
    Fault,
    Opened,
    Resume,
    RowMessage,
    ServerMessage,
    Verdict,
)

DEADLINE_S = 60.0  # a frame that is answered later hangs


class Peer:
    """One stream, one session after another, and a check of all that is answered."""

    def __init__(self, channel: grpc.aio.Channel, random: Random, counters: Counter[str]) -> None:
        self._method = channel.stream_stream(METHOD)
        self._random, self.counters = random, counters
        self._call: Any = None
        self._reading: asyncio.Task[None] | None = None
        self._fences = 0
        self._may_end = False  # a Close was sent
        self.sent: list[bytes] = []  # since the last check
        self.place: Place | None = None
        self.own: tuple[int, ...] = ()
        self._start = PrefixDigest(0, 0)
        self._places: dict[PrefixDigest, int] = {}
        self._finished = False

    async def open(self, kind: int) -> None:
        """A fresh stream and a proper session of this kind."""
        await self.close()
        opening = opening_of(kind, self._random.getrandbits(64), JPEG)
        self._inbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._call, self._may_end, self._finished = self._method(), False, False
        self._reading = asyncio.ensure_future(self._read(self._call, self._inbox))
        await self.say(encode_client(opening).data)
        opened = await self.hear()
        if not isinstance(opened, Opened):
            raise Broken(f"a proper Open got {opened}")
        self.own, self._start = own_answer(opening), opened.base
        self._places = {opened.base.extend(self.own[:n]): n for n in range(len(self.own) + 1)}
        self.place = Place(opening, opened.session, opened.base)

    async def close(self) -> None:
        """Leave the stream, as a robot does whose link is lost."""
        if self._reading is not None:
            self._call.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        self.place = self._reading = None

    async def say(self, frame: bytes) -> None:
        """Send a frame; what comes after the stream's end is lost."""
        self.sent.append(frame)
        with contextlib.suppress(grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
            await self._call.write(frame)

    async def hear(self) -> ServerMessage | None:
        """The next answer, checked; None where the stream has ended as it may."""
        try:
            data = await asyncio.wait_for(self._inbox.get(), DEADLINE_S)
        except asyncio.TimeoutError:
            raise Broken(f"no answer for {DEADLINE_S:g} s") from None
        if data is None:
            code, why = await self._call.code(), await self._call.details()
            # What our own end makes of a write that found the stream ended.
            fine = code is grpc.StatusCode.OK or why == "Internal error from Core"
            if not fine or not self._may_end:
                raise Broken(f"the stream ended with {code}: {why}")
            self.place = None
            return None
        message = decode_server(read_server(data))
        self._check(message)
        return message

    async def fence(self) -> list[ServerMessage]:
        """The answers to all that was sent: up to one that names a number of ours."""
        self._fences += 1
        number = 1_000_000 + self._fences
        self._may_end = self._may_end or any(map(_closes, self.sent))
        later = replace(opening_of(0, 0, b""), protocol=number, oldest_protocol=number)
        await self.say(encode_client(later).data)
        answers: list[ServerMessage] = []
        while (message := await self.hear()) is not None:
            if isinstance(message, Fault) and f"protocol {number} " in message.text:
                self.counters["bad_request"] -= 1
                break
            answers.append(message)
        self.sent.clear()
        return answers

    async def locate(self) -> Place | None:
        """Where the session stands; None where it is gone or its answer has ended."""
        if self.place is None:
            return None
        await self.say(encode_client(Resume(self.place.session, self._start)).data)
        opened = [a for a in await self.fence() if isinstance(a, Opened)]
        if self.place is None or not opened or self._finished:
            self.place = None
            return None
        base = opened[-1].base
        if self.own and base not in self._places:
            raise Broken(f"the session stands at {base}, where its answer never was")
        ended = self.own and self._places[base] == len(self.own)
        self.place = None if ended else replace(self.place, base=base)
        return self.place

    async def draft(self, draft: pb.Draft) -> Verdict | None:
        """The verdict on a draft."""
        base = self.place.draft_base
        await self.say(frame_of(draft, base))
        answers = await self.fence()
        if self.place is not None and any(_wants_resampled(answer) for answer in answers):
            token = 1 if self.place.resampled is None else None
            self.place = replace(self.place, resampled=token)
        return next((a for a in answers if isinstance(a, Verdict) and a.base == base), None)

    async def _read(self, call: Any, inbox: asyncio.Queue[bytes | None]) -> None:
        with contextlib.suppress(grpc.RpcError):
            async for data in call:
                inbox.put_nowait(data)
        inbox.put_nowait(None)

    def _check(self, message: ServerMessage) -> None:
        self.counters[type(message).__name__.lower()] += 1
        if isinstance(message, Fault):
            code, text = message.code, message.text
            self.counters[code] += 1
            if not code or code == "internal" or not 10 <= len(text) <= 1000:
                raise Broken(f"a fault that says too little or too much: {message}"[:2000])
            self._finished |= "the answer ended" in text
        elif isinstance(message, Verdict):
            self._check_verdict(message)

    def _check_verdict(self, verdict: Verdict) -> None:
        """Under greedy and coupled every token is the target's own, whatever was drafted."""
        if self.own and verdict.base in self._places:
            at = self._places[verdict.base] + len(verdict.path)
            last = () if verdict.token is None else (verdict.token,)
            if last != self.own[at : at + len(last)] or at > len(self.own):
                raise Broken(f"{verdict} is not the target's own: {self.own[at:]}")
        elif not self.own and self.place is not None:
            self._finished |= bool(verdict.finish)
            told = verdict.residual is not None
            self.counters["residual"] += told
            rejected = verdict.base if told else self.place.rejected
            self.place = replace(self.place, resampled=1 if told else None, rejected=rejected)


def _closes(frame: bytes) -> bool:
    try:
        return isinstance(decode_client(read_client(frame)), Close)
    except ValueError:
        return False


def _wants_resampled(answer: ServerMessage) -> bool:
    if isinstance(answer, Fault):
        return "begins with the resampled token" in answer.text
    return isinstance(answer, RowMessage)


class Hostile(Peer):
    """Sends mutated frames, and looks whether its session can still be used."""

    def __init__(self, *arguments: Any, kind: int) -> None:
        super().__init__(*arguments)
        self._kind = kind
        self.mutated: list[bytes] = []  # the frames of the last batch

    async def batch(self, count: int, frames: list[bytes] | None = None) -> None:
        """So many mutated frames (or these), then a proper draft."""
        if await self.locate() is None:
            await self.open(self._kind)
            self._kind += 1
        self.mutated = frames or hostile(self._random, self.place, count)
        for frame in self.mutated:
            await self.say(frame)
        await self.fence()
        await self.probe()

    async def probe(self) -> None:
        """A proper draft gets its verdict, if the session stands; what was under way may go on."""
        for _ in range(5):
            place = await self.locate()
            if place is None:
                return
            at = self._places.get(place.base, 0)
            tokens = list(self.own[at : at + 2]) or None
            if await self.draft(proper_draft(self._random, place, tokens)) is not None:
                return
        if not self._finished:
            raise Broken(f"a proper draft got no verdict in a session of {self.place}")


class Bystander(Peer):
    """A well-behaved robot: two right tokens and a wrong one, and just that verdict is due."""

    async def ready(self, number: int) -> None:
        """Have a session with a few tokens to go."""
        while self.place is None or self._at + 4 > len(self.own):
            number += 1
            await self.open(number % 2)

    async def check(self) -> None:
        """One draft on the session that stood before."""
        right = self.own[self._at : self._at + 3]
        wrong = (right[2] + 1) % VOCABULARY
        message = DraftMessage(self.place.base, Draft((*right[:2], wrong)), 0)
        await self.say(encode_client(message).data)
        verdict = await self.hear()
        expected = (self.place.base, (0, 1), right[2])
        if not isinstance(verdict, Verdict) or (
            (verdict.base, verdict.path, verdict.token) != expected
        ):
            raise Broken(f"the bystander got {verdict}, not {expected}")
        self.sent.clear()
        self.place = replace(self.place, base=self.place.base.extend(right))

    @property
    def _at(self) -> int:
        return self._places[self.place.base]
