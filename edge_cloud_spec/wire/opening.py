"""Between ``Open`` and protobuf, with what the cloud is asked to do alone."""

from __future__ import annotations

from ..decoding.policy import SamplingPolicy
from . import decode_pb2 as pb
from .fields import read_split, write_split
from .messages import Alone, Open, WireError

MAX_VERIFIED = 65_536  # tokens with which an answer goes on at another verifier


def write_open(message: Open) -> pb.Open:
    """A robot's Open as protobuf."""
    policy = message.policy
    return pb.Open(
        protocol=message.protocol,
        oldest_protocol=message.oldest_protocol,
        nonce=message.nonce,
        instruction=message.instruction,
        jpeg=message.jpeg,
        order=message.order,
        policy=pb.Policy(
            temperature=policy.temperature,
            top_k=policy.top_k,
            top_p=policy.top_p,
            seed=policy.seed,
            grammar=policy.grammar,
        ),
        rule=message.rule,
        payload=message.payload,
        tokenizer_digest=message.tokenizer_digest,
        draft_identity=message.draft_identity,
        spec_digest=message.spec_digest,
        max_tokens=message.max_tokens,
        draft_length=message.draft_length,
        split=write_split(message.split),
        distinct=not message.replacement,
        predictions=message.predictions,
        key=message.key,
        secret=message.secret,
        preset=message.preset,
        verified=message.verified,
        generate=None if message.alone is None else write_alone(message.alone),
        lookup=message.lookup,
    )


def read_open(o: pb.Open) -> Open:
    """The inverse of ``write_open``; raises WireError, ValueError for a value out of range."""
    if len(o.verified) > MAX_VERIFIED:
        raise WireError(f"an answer has at most {MAX_VERIFIED} tokens")
    p = o.policy
    return Open(
        nonce=o.nonce,
        instruction=o.instruction,
        jpeg=o.jpeg,
        order=o.order,
        policy=SamplingPolicy(p.temperature, p.top_k, p.top_p or 1.0, p.seed, p.grammar),
        rule=o.rule,
        payload=o.payload,
        tokenizer_digest=o.tokenizer_digest,
        draft_identity=o.draft_identity,
        spec_digest=o.spec_digest,
        max_tokens=o.max_tokens,
        draft_length=o.draft_length,
        protocol=o.protocol,
        oldest_protocol=o.oldest_protocol,
        split=read_split(o.split) if o.HasField("split") else None,
        replacement=not o.distinct,
        predictions=o.predictions,
        key=o.key,
        secret=o.secret,
        preset=o.preset,
        verified=tuple(o.verified),
        alone=read_alone(o.generate) if o.HasField("generate") else None,
        lookup=o.lookup,
    )


def write_alone(alone: Alone) -> pb.Generate:
    """What the cloud does alone, without the prefix that it begins after."""
    return pb.Generate(
        speculative=alone.speculative, until=alone.until, may_speculate=alone.may_speculate
    )


def read_alone(m: pb.Generate) -> Alone:
    """The inverse of ``write_alone``."""
    return Alone(m.speculative, m.until, m.may_speculate)
