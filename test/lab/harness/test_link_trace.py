"""A link as it was measured: its file, what it does to messages, and traces that are made."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.cli import main
from edge_cloud_spec.errors import UserError
from edge_cloud_spec_lab.bench import links
from edge_cloud_spec_lab.harness.emulated_link import Direction, LinkProfile, LinkTrace, read_trace


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "link.csv"


def traced(file: Path, rows: str) -> LinkProfile:
    file.write_text(rows)
    return LinkProfile(trace=read_trace(file))


# The file


def test_a_row_counts_until_the_next_and_a_trace_begins_again(file: Path) -> None:
    head = "\ufeff# of a drive\n\nseconds, rtt, rate\n"
    link = traced(file, head + "100, 40, 8\n101, 200\n102, 30,\n")
    times = (0.0, 0.999, 1.0, 1.5, 2.0, 2.999, 3.0, 4.0, 300.5)
    delays = [link.at(time).delay_ms for time in times]
    assert delays == [20.0, 20.0, 100.0, 100.0, 15.0, 15.0, 20.0, 100.0, 20.0]
    assert [link.at(time).rate_mbit for time in (0.5, 1.5)] == [8.0, 0.0]
    assert (link.rtt_ms, link.longest_outage_s, list(link.outages())) == (40.0, 0.0, [])


def test_an_empty_round_trip_and_a_gap_are_outages_also_over_the_end(file: Path) -> None:
    rows = ["0,", *(f"{second},40" for second in (1, 2, 3, 6, 7, 11.1, 12)), "13,"]
    link = traced(file, "\n".join(rows))  # of a period of 1 s; from 3 to 6 are three of them
    first = list(itertools.islice(link.outages(), 4))
    assert first == [(0.0, 1.0), (8.0, 11.1), (13.0, 15.0), (22.0, 25.1)]
    assert link.longest_outage_s == pytest.approx(3.1)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ("0,40\n1,x", "line 2: the round trip 'x' is no number of 0 or more"),
        ("0,40\n1,-3", "line 2: the round trip '-3'"),
        ("0,40\n1,nan", "line 2: the round trip 'nan'"),
        ("# a\n\n0,40\n,40", "line 4: the time ''"),
        ("0,40\n1,40,inf", "line 2: the rate 'inf'"),
        ("0,40\n1,40,0", "line 2: below 0.001 Mbit/s it is an outage"),
        ("0,40\n2,40\n2,40", "line 3: the time 2 is not after the row before, 2"),
        ("0 40\n1 40", "line 1: give seconds, round trip in ms and maybe Mbit/s"),
        ("0,40\n1,40,1,1", "line 2: give seconds"),
        ("time,rtt\nms,ms\n0,40\n1,40", "line 2: the time 'ms'"),  # one heading
        ("o,40\n1,40", "line 1: the time 'o'"),  # no heading has a digit
        ("0,40", "has no two rows"),
        ("", "has no two rows"),
        ("0,\n1,", "or only outages"),
    ],
)
def test_bad_content_is_one_sentence_with_its_line(file: Path, rows: str, why: str) -> None:
    with pytest.raises(UserError) as told:
        traced(file, rows)
    assert why in str(told.value) and str(file) in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize("suite", ["mission", "pipelines"])
def test_every_suite_says_what_it_cannot_use(
    suite: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others = {"mission": "--outage 60,2", "pipelines": "--jitter 2"}[suite]
    file.write_bytes(b"0,40\n\xff,40\n")
    for options, why in (
        ("", "is no text"),
        (others, f"leave out {others.split()[0]}"),
        (f"--link {file.parent}", "cannot be read"),
    ):
        assert main(["bench", suite, "--link", str(file), *options.split()]) == 2
        said = capsys.readouterr().err
        assert why in said and said.count("\n") == 1


# What it does


@given(
    sent=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 10**5)), max_size=30),
    rows=st.lists(st.tuples(st.floats(0, 900), st.floats(0.1, 50)), min_size=1, max_size=9),
    period=st.sampled_from([0.1, 0.3, 1.0]),
    jitter=st.sampled_from([0.0, 50.0, 500.0]),
)
def test_messages_keep_their_order_and_are_neither_early_nor_above_the_rate(
    sent: list[tuple[float, int]], rows: list[tuple[float, float]], period: float, jitter: float
) -> None:
    rtts, rates = zip(*rows, strict=True)
    begins = tuple(period * number for number in range(len(rows)))
    trace = LinkTrace("t", begins, rtts, rates, period * len(rows))
    varied = Direction(LinkProfile(jitter_ms=jitter, trace=trace), seed=1)
    least = Direction(LinkProfile(min(rtts) / 2, rate_mbit=max(rates)), seed=1)
    most = Direction(LinkProfile(max(rtts) / 2, rate_mbit=min(rates)), seed=1)
    now = last = 0.0
    for pause, size in sent:
        now += pause
        arrival = varied.arrival(now, size)
        assert arrival >= last
        assert least.arrival(now, size) - 1e-6 <= arrival
        assert arrival <= most.arrival(now, size) + jitter / 1e3 + 1e-6
        last = arrival


def test_a_message_over_several_rows_is_sent_at_their_rates(file: Path) -> None:
    way = Direction(traced(file, "0,0,8\n1,0,80\n2,100,8"), seed=1)  # 1, 10, 1 MB/s
    assert way.arrival(0.5, 5_500_000) == pytest.approx(1.5)
    assert way.arrival(1.5, 5_500_000) == pytest.approx(2.5 + 0.05)
    way.clear()
    assert way.arrival(1.5, 1_000_000) == pytest.approx(1.6), "what an outage lost is in no way"


def test_pipelines_take_a_trace(file: Path, tmp_path: Path) -> None:
    file.write_text("0,30\n1,300\n2,\n3,30\n4,40\n")
    out = tmp_path / "rows.json"
    options = "--presets cloud_ar,auto --tokens 300"
    options += f" --cost-profile today-7b --link {file} --json {out}"
    assert main(["bench", "pipelines", *options.split()]) == 0
    row = json.loads(out.read_text())["rows"][0]
    assert row["resumed"] > 0 and row["equal"] == 3
    assert row["rtt_ms"] == 40.0


# Those that are made


def test_made_links_have_their_percentiles_and_no_packet_overtakes(tmp_path: Path) -> None:
    assert links.main([str(tmp_path / "one")]) == links.main([str(tmp_path / "again")]) == 0
    assert links.main([str(tmp_path / "other"), "--seed", "2"]) == 0
    for name, drive in links.MEASURED_DRIVES.items():
        one, again, other = (tmp_path / each / f"{name}.csv" for each in ("one", "again", "other"))
        text = one.read_text()
        assert "seed 1" in text and text == again.read_text() != other.read_text()
        trace = read_trace(one)
        trips = np.array([np.nan if rtt is None else rtt for rtt in trace.rtt_ms])
        assert len(trips) == 3_000 and trace.seconds == pytest.approx(300)
        found = np.nanpercentile(trips, (50, 99, 100))
        assert found == pytest.approx(np.array([drive.p50, drive.p99, drive.worst]), rel=0.25)
        assert np.nanmin(np.diff(trips)) > -2e3 * links.TRACE_PERIOD_S - 0.2, "rounded to .1 ms"
        assert 0.4 < LinkProfile(trace=trace).longest_outage_s < 5.1 or not drive.stalls
