"""What can be wrong with an answer of the cloud: each flaw must end the decode."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

from fuzz.draft_flaws import ID_FLAWS, ROW_FLAWS, RowFlaw, row_of
from fuzz.drafts import VOCABULARY
from fuzz.scenes import Scene

from edge_cloud_spec.wire import decode_pb2 as pb
from edge_cloud_spec.wire.codec import read_server
from edge_cloud_spec.wire.frames import Head, ServerFrame

# What can be wrong with a residual, a row or a verdict. Each of these must end the decode.


@dataclass
class Answer:
    """A verdict, or all of P, with the head of its frame."""

    head: Head
    body: Any  # pb.Verdict or pb.Rows

    @classmethod
    def of(cls, frame: bytes) -> Answer:
        read = read_server(frame)
        kind = pb.Rows if read.head.kind == "row" else pb.Verdict
        return cls(read.head, kind.FromString(read.body))

    @property
    def frame(self) -> bytes:
        return ServerFrame.of(self.head, self.body.SerializeToString()).data

    @property
    def rows(self) -> pb.Rows:
        body: pb.Rows = self.body if self.head.kind == "row" else self.body.residual.top
        return body


Flaw = Callable[[Answer, Random], None]


def _rows(answer: Answer, random: Random, flaw: RowFlaw) -> None:
    flaw(answer.rows, random)


def _row(answer: Answer, random: Random, row: pb.Rows) -> None:
    """This row instead, and no tail."""
    answer.rows.CopyFrom(row)
    if answer.head.kind == "verdict" and answer.body.residual.HasField("tail"):
        answer.body.residual.tail_mass = 0.0


FLAWS: dict[str, Flaw] = {
    **{name: partial(_rows, flaw=flaw) for name, flaw in ROW_FLAWS.items()},
    **{name: partial(_row, row=row_of(ids, 1 / len(ids))) for name, ids in ID_FLAWS.items()},
    "no numbers": partial(_row, row=pb.Rows(sizes=[0], id_bits=1)),
    "a dense row of another vocabulary": partial(
        _row, row=pb.Rows(sizes=[1], probabilities=struct.pack("<f", 1.0))
    ),
}


def _mass(answer: Answer, random: Random, mass: float) -> None:
    answer.body.residual.tail_mass = mass


def _tail(answer: Answer, random: Random, ids: list[int], share: float) -> None:
    answer.body.residual.tail.CopyFrom(row_of(ids, share))


SPARSE_FLAWS: dict[str, Flaw] = {
    "a tail mass of NaN": partial(_mass, mass=float("nan")),
    "a negative tail mass": partial(_mass, mass=-0.25),
    "an infinite tail mass": partial(_mass, mass=float("inf")),
    "a tail mass of 2": partial(_mass, mass=2.0),
    "a tail token outside": partial(_tail, ids=[VOCABULARY], share=0.1),
    "a tail token far outside": partial(_tail, ids=[2**31 - 1], share=0.1),
    "a tail probability of 0": partial(_tail, ids=[60], share=0.0),
    "a tail probability of NaN": partial(_tail, ids=[60], share=float("nan")),
    "a negative tail probability": partial(_tail, ids=[60], share=-0.1),
    "a tail probability above 1": partial(_tail, ids=[60], share=1.5),
    "a tail longer than asked for": partial(_tail, ids=[0] * 1000, share=0.01),
}


def _token(answer: Answer, random: Random) -> None:
    answer.body.ClearField("residual")
    answer.body.token = VOCABULARY


def _path(answer: Answer, random: Random, more: int = 0) -> None:
    """The head may say another length of the path than the nodes that follow."""
    answer.body.path.extend([7, 8])
    answer.head = replace(answer.head, accepted=len(answer.body.path) + more)


def _long(answer: Answer, random: Random) -> None:
    answer.head = replace(answer.head, accepted=2**16 - 1)


def _nothing(answer: Answer, random: Random) -> None:
    answer.body.Clear()
    answer.head = Head("verdict", answer.head.base)


def _both(answer: Answer, random: Random) -> None:
    answer.body.token = 1
    answer.body.residual.top.CopyFrom(row_of([*range(VOCABULARY)], 1 / VOCABULARY))


VERDICT_FLAWS: dict[str, Flaw] = {
    "a token outside": _token,
    "a path that was not drafted": _path,
    "a head that lies about the path": partial(_path, more=1),
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
