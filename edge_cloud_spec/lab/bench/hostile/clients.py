"""Hostile clients: streams that repeat one attack as fast as the verifier lets them."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from random import Random

from ....decoding.draft import MAX_NODES, Draft
from ....decoding.policy import SamplingPolicy
from ....decoding.split import Split
from ....models.prompt import Request
from ....wire.messages import Alone, DraftMessage, Fault, Generate, Resume, RowRequest, Verdict
from .broken_frames import byte_a_second, reconnects, vanishes
from .client import Attack, Client

TREE = 64  # tokens: a draft that every verifier accepts
CHAIN = 1024  # and one that none does
BIG = 8192  # pixels a side
FRAME = (2048, 1024)  # pixels: the largest that is accepted


Step = Callable[[], Awaitable[None]]


async def _reading(client: Client, step: Step) -> AsyncGenerator[None, None]:
    """Repeat the step while draining the answers."""
    reading = asyncio.ensure_future(client.drain())
    try:
        while not reading.done():
            await step()
            yield
    finally:
        reading.cancel()


async def _rejected(client: Client) -> Verdict:
    """A verdict after which rows may be requested."""
    split = Split("dense")
    opening = client.opening(
        rule="rejection", policy=SamplingPolicy(1.0), payload="probabilities", split=split
    )
    while True:
        base = (await client.open(replace(opening, nonce=client.random.getrandbits(64)))).base
        for token in range(20, 40):
            await client.send(DraftMessage(base, Draft((token,), values=(1.0,)), 0))
            answer = await client.receive()
            if isinstance(answer, Verdict) and answer.residual is not None:
                return answer
            break  # accepted: another session


async def does_not_read(client: Client) -> AsyncGenerator[None, None]:
    """Request rows and read none of them."""
    request = RowRequest((await _rejected(client)).base)
    while True:
        await client.send(request)
        yield


async def row_requests(client: Client) -> AsyncGenerator[None, None]:
    """Request rows, and read them."""
    request = RowRequest((await _rejected(client)).base)
    async for _ in _reading(client, lambda: client.send(request)):
        yield


def _png(width: int, height: int) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (width, height), (90, 120, 60)).save(file, "PNG")
    return file.getvalue()


async def large_picture(client: Client) -> AsyncGenerator[None, None]:
    """A picture of 67 million pixels in 200 kB."""
    picture = _png(BIG, BIG)
    async for _ in _reading(client, lambda: client.send(client.opening(picture))):
        yield


async def largest_frame(client: Client) -> AsyncGenerator[None, None]:
    """The largest picture that is accepted."""
    picture = _png(*FRAME)
    async for _ in _reading(client, lambda: client.send(client.opening(picture))):
        yield


async def long_chains(client: Client) -> AsyncGenerator[None, None]:
    """Chains of 1,024 tokens, which are refused, between the largest drafts that are judged."""
    opened = await client.open(client.opening())
    base, wide_tree = opened.base, Draft((20,) * TREE, (-1,) * TREE)
    while True:
        for _ in range(4):
            await client.send(DraftMessage(base, Draft((20,) * CHAIN), 0))
        await client.send(DraftMessage(base, wide_tree, 0))
        while not isinstance(answer := await client.receive(), Verdict):
            pass
        yield
        if answer.finish or answer.token is None:
            base = (await client.open(client.opening())).base
        else:
            base = base.extend((*wide_tree.tokens[: len(answer.path)], answer.token))


async def large_trees(client: Client) -> AsyncGenerator[None, None]:
    """Trees of 1,024 nodes without end, as wide as the vocabulary is: judged or refused."""
    wide = Draft(tuple(range(20, 20 + MAX_NODES)), (-1,) * MAX_NODES)
    while True:
        base = (await client.open(client.opening())).base
        answer: object = None
        while not (isinstance(answer, Verdict) and (answer.finish or answer.token is None)):
            await client.send(DraftMessage(base, wide, 0))
            while not isinstance(answer := await client.receive(), (Verdict, Fault)):
                pass
            yield
            if isinstance(answer, Verdict) and answer.token is not None:
                base = base.extend((*(wide.tokens[node] for node in answer.path), answer.token))


async def opens(client: Client) -> AsyncGenerator[None, None]:
    """Open one new request after another, each with a new picture."""
    async for _ in _reading(client, lambda: client.send(client.opening())):
        yield


async def resumes(client: Client) -> AsyncGenerator[None, None]:
    """Resume the session over and over."""
    opened = await client.open(client.opening())
    resume = Resume(opened.session, opened.base)
    async for _ in _reading(client, lambda: client.send(resume)):
        yield


async def garbage(client: Client) -> AsyncGenerator[None, None]:
    """Bytes that are no message, and sometimes a draft of a million tokens."""
    million = b"\x12\xc4\x84\x3d\x12\xc0\x84\x3d" + b"\x01" * 10**6

    def step() -> Awaitable[None]:
        noise = client.random.randbytes(client.random.randrange(2_000))
        return client.send(million if client.random.random() < 0.02 else noise)

    async for _ in _reading(client, step):
        yield


async def generates(client: Client) -> AsyncGenerator[None, None]:
    """Have the cloud's own draft model draft without a limit, answer after answer."""
    while True:
        opened = await client.open(client.opening(draft_length=2**32 - 1))
        await client.send(Generate(opened.base, Alone(speculative=True)))
        while not (isinstance(answer := await client.receive(), Verdict) and answer.finish):
            yield
        yield


async def abandoned(client: Client) -> AsyncGenerator[None, None]:
    """Open a session and leave without Close."""
    await client.open(client.opening())
    yield


ATTACKS: dict[str, Attack] = {
    attack.__name__: attack
    for attack in (
        does_not_read,
        row_requests,
        large_picture,
        largest_frame,
        long_chains,
        large_trees,
        generates,
        opens,
        resumes,
        garbage,
        abandoned,
        byte_a_second,
        vanishes,
        reconnects,
    )
}


async def attack(
    name: str,
    address: str,
    request: Request,
    streams: int,
    seed: int,
    on_sent: Callable[[int], None],
    tokens: tuple[str, ...] = ("",),
) -> None:
    """Attack over so many streams until cancelled; ``on_sent`` receives the messages so far.

    tokens: those that the streams show, in turn.
    """
    clients = [
        Client(address, request, Random(f"{seed} {n}"), tokens[n % len(tokens)])
        for n in range(streams)
    ]
    tasks = [asyncio.ensure_future(client.repeat(ATTACKS[name])) for client in clients]
    while True:
        await asyncio.sleep(0.1)
        on_sent(sum(client.sent for client in clients))
        for task in tasks:
            if task.done():
                task.result()
