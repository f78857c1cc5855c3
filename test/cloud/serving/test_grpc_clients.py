"""What a client is: its certificate's identity, else its token's name, else its connection."""

from __future__ import annotations

import asyncio
import contextlib
import re
from pathlib import Path
from typing import Any

from helpers.cloud.certificates import Authority
from helpers.cloud.grpc_cloud import Cloud
from helpers.cloud.grpc_robot import Talk, opening
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.cloud.model_thread.sessions import WorkerLimits
from edge_cloud_spec.cloud.serving.access import Tokens
from edge_cloud_spec.cloud.serving.client_streams import ByteBound, SendQueue
from edge_cloud_spec.cloud.serving.server import ServerSettings
from edge_cloud_spec.lab.harness.toy import toy_worker
from edge_cloud_spec.wire.messages import Opened
from edge_cloud_spec.wire.secret_files import named_tokens


def clients(cloud: Any, *robots: dict[str, Any]) -> list[str]:
    """How the verifier names these robots, which are connected at the same time."""
    with contextlib.ExitStack() as stack:
        for number, robot in enumerate(robots):
            talk = stack.enter_context(Talk(cloud.address, **robot))
            talk.say(opening(nonce=number))
            assert isinstance(talk.hear(), Opened)
        return [stream.client for stream in cloud._server._service.streams.streams]


def test_robots_with_a_named_token_are_that_name_and_others_a_hash(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("sesame\nrobot-7:barley\nrobot-7:barley-before\n")
    with Cloud(toy_worker(), token_file=str(tokens)) as cloud:
        shown = ("sesame", "barley", "barley-before", "robot-7:barley", "sesame")
        found = clients(cloud, *({"token": token} for token in shown))
        assert sorted(found)[:3] == ["robot-7"] * 3
        assert re.fullmatch(r"token [0-9a-f]{12}", sorted(found)[3]) and found.count(found[0]) == 2
        with Talk(cloud.address, token="robot-7") as stranger:  # a name is no secret
            stranger.say(opening())
            assert stranger.hear().code == "unauthenticated"


def test_robots_without_a_credential_are_a_client_for_each_connection(toy: Any) -> None:
    found = clients(toy, {}, {})
    assert len(set(found)) == 2 and all("127.0.0.1" in name for name in found)


def test_a_robot_with_a_certificate_is_its_identity_whatever_its_token(tmp_path: Path) -> None:
    fleet = Authority(tmp_path, "fleet")
    served, robot = fleet.certificate("server"), fleet.certificate("robot-1")
    authority = str(fleet.path)
    with Cloud(toy_worker(), **served, client_authority=authority, token="sesame") as cloud:
        found = clients(cloud, *[{"authority": authority, "token": "sesame", **robot}] * 2)
    assert found[0] == found[1]
    assert "robot-1" in found[0] or "127.0.0.1" in found[0]
    assert "sesame" not in found[0] and "token" not in found[0]


lines = st.lists(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1))


@given(lines)
def test_every_line_of_a_token_file_is_good_and_has_the_name_before_its_colon(
    lines: list[str],
) -> None:
    """As whole lines, too: a token from before there were names may hold a colon."""
    named = named_tokens(tuple(lines))
    assert set(lines) <= {token for _, token in named}
    for name, token in named:
        unnamed = " " in name and token in lines
        assert unnamed or f"{name}:{token}" in lines or token.startswith(f"{name}:")


@given(lines, lines)
def test_a_token_keeps_its_name_whichever_other_lines_come_or_go(
    before: list[str], after: list[str]
) -> None:
    """What a name has (an index of answers, bounds, leases) is never another token's."""
    first, second = (
        {token: name for name, token in named_tokens(tuple(given)) if " " in name}
        for given in (before, after)
    )
    assert all(second[token] == name for token, name in first.items() if token in second)
    together = first | second
    assert len({*together.values()}) == len(together)


def test_a_revoked_tokens_answers_are_not_the_next_robots(tmp_path: Path) -> None:
    """Its line is taken out while the verifier serves: the others stay who they were."""
    path = tmp_path / "tokens"
    path.write_text("stolen\nsesame\n")
    tokens = Tokens(ServerSettings(token_file=str(path)))
    stolen, honest = tokens.admit("Bearer stolen"), tokens.admit("Bearer sesame")
    path.write_text("sesame\n")
    assert tokens.admit("Bearer stolen") is None
    assert tokens.admit("Bearer sesame") == honest != stolen


def test_a_wrong_token_has_no_name_and_without_tokens_everybody_is_let_in() -> None:
    tokens = Tokens(ServerSettings(token="robot-1:sesame"))
    assert tokens.admit("Bearer sesame") == "robot-1"
    for wrong in ("", "Bearer", "Bearer ", "sesame", "Bearer robot-1", "Bearer robot-1:"):
        assert tokens.admit(wrong) is None
    assert Tokens(ServerSettings()).admit("Bearer whatever") == ""


def test_a_client_that_opens_streams_without_end_ends_its_own(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("honest:sesame\nhostile:barley\n")
    limits = WorkerLimits(sessions=8, sessions_per_robot=2)
    with (
        Cloud(toy_worker(limits), token_file=str(tokens)) as cloud,
        contextlib.ExitStack() as open_,
    ):
        honest = open_.enter_context(Talk(cloud.address, token="sesame"))
        honest.say(opening())
        assert isinstance(honest.hear(), Opened)
        for nonce in range(12):
            robot = open_.enter_context(Talk(cloud.address, token="barley", retry_s=60.0))
            robot.say(opening(nonce=100 + nonce))
            assert robot.hear()
        service = cloud._server._service
        found = [stream.client for stream in service.streams.streams]
        assert found.count("honest") == 1
        assert 1 <= found.count("hostile") <= 4
        assert service.streams.evicted >= 8


def test_what_waits_for_a_client_is_bounded_over_all_its_streams() -> None:
    async def fill() -> None:
        bound, gone = ByteBound(1000), []
        queues = [SendQueue(600, lambda: gone.append(1), bound) for _ in range(3)]
        queues[0].put(b"x" * 500)
        queues[1].put(b"x" * 400)
        assert not queues[1].over
        queues[2].put(b"x" * 200)  # little, but its client has too much
        await asyncio.sleep(0)
        assert queues[2].over and gone == [1]
        assert await queues[0].take() == b"x" * 500
        for queue in queues:
            queue.close()
            queue.put(b"late")  # the worker does not know yet that the stream is over
        assert await queues[1].take() == b"x" * 400  # nor does who sends what waits
        assert bound.size == 0

    asyncio.run(fill())
