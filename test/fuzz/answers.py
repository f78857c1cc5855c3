"""What can be wrong with an answer of the cloud: each flaw must end the decode."""

from __future__ import annotations

import struct
from collections.abc import Callable

from fuzz.drafts import VOCABULARY
from fuzz.scenes import Scene

from edge_cloud_spec.wire import decode_pb2 as pb

# What can be wrong with a residual, a row or a verdict. Each of these must end the decode.

Flaw = Callable[[pb.ServerMessage], None]


def _rows_of(message: pb.ServerMessage) -> pb.Rows:
    return message.row.row if message.HasField("row") else message.verdict.residual.top


def _number(number: float) -> Flaw:
    def error(message: pb.ServerMessage) -> None:
        rows = _rows_of(message)
        rows.probabilities = struct.pack("<f", number) + rows.probabilities[4:]

    return error


def _scaled(message: pb.ServerMessage) -> None:
    rows = _rows_of(message)
    numbers = struct.unpack(f"<{len(rows.probabilities) // 4}f", rows.probabilities)
    rows.probabilities = struct.pack(f"<{len(numbers)}f", *(3 * n for n in numbers))


def _empty(message: pb.ServerMessage) -> None:
    _rows_of(message).CopyFrom(pb.Rows(sizes=[0], id_bits=1))


def _zeros(message: pb.ServerMessage) -> None:
    rows = _rows_of(message)
    rows.probabilities = bytes(len(rows.probabilities))


def _short(message: pb.ServerMessage) -> None:
    """One number alone: a dense row of another vocabulary, or a mass that is not the whole."""
    _rows_of(message).CopyFrom(pb.Rows(sizes=[1], probabilities=struct.pack("<f", 1.0)))


def _ids(*ids: int) -> Flaw:
    def error(message: pb.ServerMessage) -> None:
        data = sum(number << (31 * place) for place, number in enumerate(ids))
        packed = data.to_bytes((31 * len(ids) + 7) // 8, "little")
        numbers = struct.pack(f"<{len(ids)}f", *([1 / len(ids)] * len(ids)))
        rows = pb.Rows(sizes=[len(ids)], probabilities=numbers, ids=packed, id_bits=31)
        _rows_of(message).CopyFrom(rows)
        if message.verdict.residual.HasField("tail"):
            message.verdict.residual.tail_mass = 0.0

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
    def error(message: pb.ServerMessage) -> None:
        message.verdict.residual.tail_mass = mass

    return error


def _tail(token: int, number: float) -> Flaw:
    def error(message: pb.ServerMessage) -> None:
        message.verdict.residual.tail.CopyFrom(
            pb.Rows(
                sizes=[1],
                probabilities=struct.pack("<f", number),
                ids=token.to_bytes(4, "little"),
                id_bits=31,
            )
        )

    return error


def _long_tail(message: pb.ServerMessage) -> None:
    size = 1000
    rows = pb.Rows(sizes=[size], probabilities=struct.pack("<f", 0.01) * size, id_bits=1)
    rows.ids = bytes((size + 7) // 8)
    message.verdict.residual.tail.CopyFrom(rows)


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


def _token(message: pb.ServerMessage) -> None:
    message.verdict.ClearField("residual")
    message.verdict.token = VOCABULARY


def _path(message: pb.ServerMessage) -> None:
    message.verdict.path.extend([7, 8])


def _nothing(message: pb.ServerMessage) -> None:
    message.verdict.CopyFrom(pb.Verdict(base=message.verdict.base))


def _both(message: pb.ServerMessage) -> None:
    message.verdict.token = 1
    message.verdict.residual.top.CopyFrom(
        pb.Rows(sizes=[VOCABULARY], probabilities=struct.pack("<f", 1 / VOCABULARY) * VOCABULARY)
    )


VERDICT_FLAWS: dict[str, Flaw] = {
    "a token outside": _token,
    "a path that was not drafted": _path,
    "nothing settled": _nothing,
    "a token and a residual": _both,
}


def flaws_of(scene: Scene) -> dict[str, Flaw]:
    """What would spoil the frame that this scene waits for."""
    message = pb.ServerMessage.FromString(scene.due)
    if message.HasField("row"):
        return FLAWS
    if not message.verdict.HasField("residual"):
        known = {} if scene.name == "alone" else VERDICT_FLAWS
        return {"nothing settled": _nothing, "a token and a residual": _both, **known}
    return {
        **VERDICT_FLAWS,
        **FLAWS,
        **(SPARSE_FLAWS if scene.name == "sparse" else {}),
    }
