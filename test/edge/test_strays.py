"""Whatever names a place where the answer is not changes nothing, whenever it comes."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.preset import Preset
from edge_cloud_spec.decoding.token_distribution import TokenDistribution
from edge_cloud_spec.edge.decoder import EdgeDecoder
from edge_cloud_spec.edge.events import Emit, Event, Received
from edge_cloud_spec.lab.harness.toy import VOCABULARY
from edge_cloud_spec.lab.harness.virtual_decode import Conditions, Decode
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec.wire.messages import (
    ClientMessage,
    Close,
    DraftMessage,
    Prediction,
    RowMessage,
    RowRequest,
    ServerMessage,
    Verdict,
)

TIGHT = replace(
    load_preset("dssd"), name="tight", residual_top_k=1, residual_tail=1
)  # often asks for the row
PICOSPEC = load_preset("picospec")
GUESSING = replace(  # pushes drafts for tokens that it may draw itself
    PICOSPEC, name="guessing", speculation=replace(PICOSPEC.speculation, runners_up=True, least=0.0)
)
UNIFORM = TokenDistribution(np.full(VOCABULARY, 1 / VOCABULARY, np.float32))


def named(preset: str | Preset) -> str:
    return preset if isinstance(preset, str) else preset.name


class Watched(Decode):
    """Before each event the robot is told things that are not for it, and what it sends is read."""

    def __init__(self, *given, strays: bool = True, **changes) -> None:
        self.strays = strays
        self.told = 0
        self.asked: PrefixDigest | None = None  # the row that is awaited
        self.rows = 0
        self.settled: set[int] = set()  # positions that verdicts settled
        self.ours: set[int] = set()  # positions of tokens that the robot drew
        self.carried = {True: 0, False: 0}  # drafts with and without a token of ours
        super().__init__(*given, **changes)

    def on_event(self, event: Event) -> Event:
        if not self.decoder.finished and self.strays and self._base is not None:
            for message in self._for_others():
                stale = self.decoder.stats.stale
                received = Received(message)
                assert EdgeDecoder.handle(self.decoder, received, self.now) == [], message
                assert self.decoder.stats.stale == stale + 1
                self.told += 1
        if isinstance(event, Received):
            self._read(event.message)
        return super().on_event(event)

    @property
    def _base(self) -> PrefixDigest | None:
        """Of the empty answer, once the robot has it."""
        return self.decoder._base

    def _places(self) -> list[PrefixDigest]:
        """Where the answer was, never was, and is not yet."""
        assert self._base is not None
        size = len(self.emitted)
        was = [self._base.extend(self.emitted[:n]) for n in range(size)]
        return [*was[-3:], PrefixDigest(size, 5), PrefixDigest(size + 2, 5), PrefixDigest(0, 0)]

    def _for_others(self) -> list[ServerMessage]:
        assert self._base is not None
        size, here = len(self.emitted), self._base.extend(self.emitted)
        places = self._places()
        verdicts = [Verdict(base, (), 3) for base in places if base.length <= size]
        rows = [RowMessage(base, UNIFORM) for base in (*places, here) if base != self.asked]
        return [*verdicts, *rows, *(Prediction(base, (), 3, 0.9) for base in places)]

    def _read(self, message: ServerMessage) -> None:
        if isinstance(message, RowMessage) and message.base == self.asked:
            self.asked = None
        if isinstance(message, Verdict):
            start = message.base.length
            end = start + len(message.path) + (message.token is not None)
            self.settled.update(range(start, end))

    def on_emit(self, emit: Emit) -> None:
        assert emit.verified and emit.tokens
        places = range(emit.position, emit.position + len(emit.tokens))
        self.ours.update(set(places) - self.settled)
        super().on_emit(emit)

    def on_send(self, message: ClientMessage) -> None:
        if isinstance(message, RowRequest):
            self.asked = message.base
            self.rows += 1
        super().on_send(message)
        if isinstance(message, (DraftMessage, Close)):
            self._check_resampled(message)

    def _check_resampled(self, message: DraftMessage | Close) -> None:
        """A token that the robot drew travels with the message after it, and with no other."""
        size = len(self.emitted)
        drawn = self.emitted[-1] if size - 1 in self.ours else None
        if isinstance(message, DraftMessage):
            here = self._base is not None and message.base == self._base.extend(self.emitted)
            drawn = drawn if here else None
            self.carried[drawn is not None] += 1
        assert message.resampled == drawn


class Deceived(Decode):
    """Whatever row the cloud sends, the robot hears another."""

    row = UNIFORM
    heard = 0

    def on_event(self, event: Event) -> Event:
        if isinstance(event, Received) and isinstance(event.message, RowMessage):
            event = Received(replace(event.message, row=self.row))
            self.heard += 1
        return super().on_event(event)


@pytest.mark.parametrize(
    "row",
    [
        TokenDistribution(np.full(VOCABULARY, 0.5, np.float32)),
        TokenDistribution(np.full(VOCABULARY + 1, 1 / (VOCABULARY + 1), np.float32)),
        TokenDistribution(np.full(VOCABULARY, np.nan, np.float32)),
    ],
)
def test_a_row_that_cannot_be_p_ends_the_decode_and_nothing_of_it_is_emitted(
    row: TokenDistribution,
) -> None:
    deceived = 0
    for seed in range(30):
        policy = SamplingPolicy(1.0, seed=seed)
        one = Deceived(Random(seed), TIGHT, "rejection", policy, seed=seed, draft_noise=0.7)
        one.row = row
        finish = one.run()
        if one.heard:
            deceived += 1
            assert (finish.reason, one.heard) == ("bad_row", 1)
            assert one.emitted == one.sessions[0].tokens[: len(one.emitted)]
        else:
            assert finish.reason in ("end", "length")
    assert deceived > 3


PRESETS = (
    *("cloud_ar", "cloud_sd", "cloud_lookup", "dsd"),
    *("mc_dsd", "fsd", "picospec", "specedge", "auto"),
)
SOME = SamplingPolicy(1.0, seed=4)
RULES = {"greedy": GREEDY, "coupled": SOME, "rejection": SOME}


@pytest.mark.parametrize("rule", sorted(RULES))
@pytest.mark.parametrize("preset", [*PRESETS, "dssd", TIGHT], ids=named)
def test_what_names_another_place_is_dropped_and_counted(preset: str | Preset, rule: str) -> None:
    """Rows, verdicts and predictions, before every event of a decode; the answer is the same."""
    told = 0
    for seed in range(6):
        answers = []
        for strays in (False, True):
            conditions = Conditions(jitter=0.3)
            decode = Watched(
                Random(seed),
                preset,
                rule,
                RULES[rule],
                conditions=conditions,
                seed=seed,
                strays=strays,
            )
            finish = decode.run()
            assert finish.reason in ("end", "length"), finish
            answers.append((decode.emitted, len(decode.sent), decode.decoder.stats.stale))
            told += decode.told
        assert answers[0][:2] == answers[1][:2]
        assert answers[0][2] + decode.told == answers[1][2]
    assert told > 100


@pytest.mark.parametrize("preset", ["dssd", TIGHT, "dssd_dense", PICOSPEC, GUESSING], ids=named)
def test_a_token_that_the_robot_drew_travels_with_the_next_message_alone(
    preset: str | Preset,
) -> None:
    """So a split decode of any length ends whole: the cloud refuses what carries another."""
    with_, without, rows = 0, 0, 0
    for seed in range(30):
        policy = SamplingPolicy(1.0, seed=seed)
        decode = Watched(
            Random(seed), preset, "rejection", policy, seed=seed, draft_noise=0.7, strays=False
        )
        finish = decode.run()
        assert finish.reason in ("end", "length"), finish
        with_ += decode.carried[True]
        without += decode.carried[False]
        rows += decode.rows
    assert with_ > 20 and without > 40
    assert (rows > 0) == (preset is TIGHT)
