"""What can be wrong with an answer of the cloud: each flaw must end the decode."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fuzz.drafts import VOCABULARY
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


def _number(number: float) -> Flaw:
    def error(answer: Answer) -> None:
        rows = answer.rows
        rows.probabilities = struct.pack("<f", number) + rows.probabilities[4:]

    return error


def _scaled(answer: Answer) -> None:
    rows = answer.rows
    numbers = struct.unpack(f"<{len(rows.probabilities) // 4}f", rows.probabilities)
    rows.probabilities = struct.pack(f"<{len(numbers)}f", *(3 * n for n in numbers))


def _empty(answer: Answer) -> None:
    answer.rows.CopyFrom(pb.Rows(sizes=[0], id_bits=1))


def _zeros(answer: Answer) -> None:
    rows = answer.rows
    rows.probabilities = bytes(len(rows.probabilities))


def _short(answer: Answer) -> None:
    """One number alone: a dense row of another vocabulary, or a mass that is not the whole."""
    answer.rows.CopyFrom(pb.Rows(sizes=[1], probabilities=struct.pack("<f", 1.0)))


def _ids(*ids: int) -> Flaw:
    def error(answer: Answer) -> None:
        data = sum(number << (31 * place) for place, number in enumerate(ids))
        packed = data.to_bytes((31 * len(ids) + 7) // 8, "little")
        numbers = struct.pack(f"<{len(ids)}f", *([1 / len(ids)] * len(ids)))
        rows = pb.Rows(sizes=[len(ids)], probabilities=numbers, ids=packed, id_bits=31)
        answer.rows.CopyFrom(rows)
        if answer.head.kind == "verdict" and answer.body.residual.HasField("tail"):
            answer.body.residual.tail_mass = 0.0

    return error


FLAWS: dict[str, Flaw] = {
    "NaN": _number(float("nan")),
    "a negative number": _number(-0.125),
    "an infinite number": _number(float("inf")),
    "a number above 1": _number(1.5),
    "a sum of 3": _scaled,
    "no numbers": _empty,
    "zeros": _zeros,
    "one number": _short,
    "ids outside": _ids(3, VOCABULARY),
    "ids far outside": _ids(3, 2**31 - 1),
    "ids that descend": _ids(5, 3),
    "ids twice": _ids(3, 3),
}


def _mass(mass: float) -> Flaw:
    def error(answer: Answer) -> None:
        answer.body.residual.tail_mass = mass

    return error


def _tail(token: int, number: float) -> Flaw:
    def error(answer: Answer) -> None:
        answer.body.residual.tail.CopyFrom(
            pb.Rows(
                sizes=[1],
                probabilities=struct.pack("<f", number),
                ids=token.to_bytes(4, "little"),
                id_bits=31,
            )
        )

    return error


def _long_tail(answer: Answer) -> None:
    size = 1000
    rows = pb.Rows(sizes=[size], probabilities=struct.pack("<f", 0.01) * size, id_bits=1)
    rows.ids = bytes((size + 7) // 8)
    answer.body.residual.tail.CopyFrom(rows)


SPARSE_FLAWS: dict[str, Flaw] = {
    "a tail mass of NaN": _mass(float("nan")),
    "a negative tail mass": _mass(-0.25),
    "an infinite tail mass": _mass(float("inf")),
    "a tail mass of 2": _mass(2.0),
    "a tail token outside": _tail(VOCABULARY, 0.1),
    "a tail token far outside": _tail(2**31 - 1, 0.1),
    "a tail probability of 0": _tail(60, 0.0),
    "a tail probability of NaN": _tail(60, float("nan")),
    "a negative tail probability": _tail(60, -0.1),
    "a tail probability above 1": _tail(60, 1.5),
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
