"""What can be wrong with an answer of the cloud: each flaw must end the decode."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from fuzz.drafts import VOCABULARY, packed
from fuzz.scenes import Scene

from edge_cloud_spec.wire import decode_pb2 as pb
from edge_cloud_spec.wire.frames import Head, read_server, server_frame

# What can be wrong with a residual, a row or a verdict. Each of these must end the decode.


@dataclass
class Answer:
    """A verdict, or all of P, with the head of its frame."""

    head: Head
    body: Any  # pb.Verdict or pb.Rows

    @classmethod
    def of(cls, frame: bytes) -> Answer:
        head, body = read_server(frame)
        return cls(head, (pb.Rows if head.kind == "row" else pb.Verdict).FromString(body))

    @property
    def frame(self) -> bytes:
        return server_frame(self.head, self.body.SerializeToString())

    @property
    def rows(self) -> pb.Rows:
        body: pb.Rows = self.body if self.head.kind == "row" else self.body.residual.top
        return body


Flaw = Callable[[Answer], None]


def _number(answer: Answer, number: float) -> None:
    rows = answer.rows
    rows.probabilities = struct.pack("<f", number) + rows.probabilities[4:]


def _scaled(answer: Answer, factor: float) -> None:
    rows = answer.rows
    numbers = np.frombuffer(rows.probabilities, "<f4") * np.float32(factor)
    rows.probabilities = numbers.tobytes()


def _empty(answer: Answer) -> None:
    answer.rows.CopyFrom(pb.Rows(sizes=[0], id_bits=1))


def _short(answer: Answer) -> None:
    """One number alone: a dense row of another vocabulary, or a mass that is not the whole."""
    answer.rows.CopyFrom(pb.Rows(sizes=[1], probabilities=struct.pack("<f", 1.0)))


def _ids(answer: Answer, ids: list[int]) -> None:
    numbers = struct.pack("<f", 1 / len(ids)) * len(ids)
    rows = pb.Rows(sizes=[len(ids)], probabilities=numbers, ids=packed(ids, 31), id_bits=31)
    answer.rows.CopyFrom(rows)
    if answer.head.kind == "verdict" and answer.body.residual.HasField("tail"):
        answer.body.residual.tail_mass = 0.0


FLAWS: dict[str, Flaw] = {
    "NaN": partial(_number, number=float("nan")),
    "a negative number": partial(_number, number=-0.125),
    "an infinite number": partial(_number, number=float("inf")),
    "a number above 1": partial(_number, number=1.5),
    "a sum of 3": partial(_scaled, factor=3.0),
    "no numbers": _empty,
    "zeros": partial(_scaled, factor=0.0),
    "one number": _short,
    "ids outside": partial(_ids, ids=[3, VOCABULARY]),
    "ids far outside": partial(_ids, ids=[3, 2**31 - 1]),
    "ids that descend": partial(_ids, ids=[5, 3]),
    "ids twice": partial(_ids, ids=[3, 3]),
}


def _mass(answer: Answer, mass: float) -> None:
    answer.body.residual.tail_mass = mass


def _tail(answer: Answer, token: int, number: float) -> None:
    share = struct.pack("<f", number)
    rows = pb.Rows(sizes=[1], probabilities=share, ids=packed([token], 31), id_bits=31)
    answer.body.residual.tail.CopyFrom(rows)


def _long_tail(answer: Answer) -> None:
    size = 1000
    rows = pb.Rows(sizes=[size], probabilities=struct.pack("<f", 0.01) * size, id_bits=1)
    rows.ids = bytes((size + 7) // 8)
    answer.body.residual.tail.CopyFrom(rows)


SPARSE_FLAWS: dict[str, Flaw] = {
    "a tail mass of NaN": partial(_mass, mass=float("nan")),
    "a negative tail mass": partial(_mass, mass=-0.25),
    "an infinite tail mass": partial(_mass, mass=float("inf")),
    "a tail mass of 2": partial(_mass, mass=2.0),
    "a tail token outside": partial(_tail, token=VOCABULARY, number=0.1),
    "a tail token far outside": partial(_tail, token=2**31 - 1, number=0.1),
    "a tail probability of 0": partial(_tail, token=60, number=0.0),
    "a tail probability of NaN": partial(_tail, token=60, number=float("nan")),
    "a negative tail probability": partial(_tail, token=60, number=-0.1),
    "a tail probability above 1": partial(_tail, token=60, number=1.5),
    "a tail longer than asked for": _long_tail,
}


def _token(answer: Answer) -> None:
    answer.body.ClearField("residual")
    answer.body.token = VOCABULARY


def _path(answer: Answer) -> None:
    answer.body.path.extend([7, 8])
    answer.head = replace(answer.head, accepted=len(answer.body.path))


def _other_length(answer: Answer) -> None:
    """The head says another length of the path than the nodes that follow."""
    _path(answer)
    answer.head = replace(answer.head, accepted=answer.head.accepted + 1)


def _long(answer: Answer) -> None:
    answer.head = replace(answer.head, accepted=2**16 - 1)


def _nothing(answer: Answer) -> None:
    answer.body.Clear()
    answer.head = Head("verdict", answer.head.base)


def _both(answer: Answer) -> None:
    answer.body.token = 1
    answer.body.residual.top.CopyFrom(
        pb.Rows(sizes=[VOCABULARY], probabilities=struct.pack("<f", 1 / VOCABULARY) * VOCABULARY)
    )


VERDICT_FLAWS: dict[str, Flaw] = {
    "a token outside": _token,
    "a path that was not drafted": _path,
    "a head that lies about the path": _other_length,
    "a path of 65,535 nodes": _long,
    "nothing settled": _nothing,
    "a token and a residual": _both,
}


def flaws_of(scene: Scene) -> dict[str, Flaw]:
    """What would spoil the frame that this scene waits for."""
    answer = Answer.of(scene.due)
    if answer.head.kind == "row":
        return FLAWS
    if not answer.body.HasField("residual"):
        known = {} if scene.name == "alone" else VERDICT_FLAWS
        return {"nothing settled": _nothing, "a token and a residual": _both, **known}
    return {
        **VERDICT_FLAWS,
        **FLAWS,
        **(SPARSE_FLAWS if scene.name == "sparse" else {}),
    }
