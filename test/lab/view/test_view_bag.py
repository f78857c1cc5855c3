"""A bag as a file of Rerun's: the decision's words, both sides' time line, the map, the link."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

pytest.importorskip("rerun", reason="Rerun has no build for this Python")
pytest.importorskip("rosbags")
import pyarrow
from helpers.graph.topic_messages import INSTRUCTION, draft, message, settled
from helpers.run_bag import KINDS, Said, blank, jpeg, run, status, write_run
from rerun.blueprint.components import PlayState
from rerun.chunk import RrdReader
from rosbags.rosbag2 import StoragePlugin, Writer

from edge_cloud_spec.cli import main
from edge_cloud_spec.observe.bag_writer import types
from edge_cloud_spec_lab.view.entities import GOAL_PATH, Entities, bag_messages
from edge_cloud_spec_lab.view.sink import Sink


class Row(NamedTuple):
    at: float | None  # seconds of the run; None: static
    values: dict[str, Any]  # by component; those of one entry are not in a list


def read_rows(path: Path) -> dict[str, list[Row]]:
    """The rows of each entity, in the order of their times."""
    found: dict[str, list[Row]] = {}
    for chunk in RrdReader(str(path)).stream().to_chunks():
        batch = chunk.to_record_batch()
        times: list[float | None] = [None] * batch.num_rows
        if "run" in batch.schema.names:
            times = [ns / 1e9 for ns in batch.column("run").cast(pyarrow.int64()).to_pylist()]
        columns = {n.partition(":")[2]: batch.column(n) for n in batch.schema.names if ":" in n}
        for index, at in enumerate(times):
            values = {name: _only(column[index].as_py()) for name, column in columns.items()}
            known = {name: value for name, value in values.items() if value is not None}
            found.setdefault(str(chunk.entity_path), []).append(Row(at, known))
    for rows in found.values():
        rows.sort(key=lambda row: -1.0 if row.at is None else row.at)
    return found


def play_state(path: Path) -> PlayState:
    """What a viewer that opens the file does with the time, by its blueprint."""
    reader = RrdReader(str(path))
    [blueprint] = reader.blueprints()
    column = "TimePanelBlueprint:play_state"
    batches = [c.to_record_batch() for c in reader.stream(store=blueprint).to_chunks()]
    [said] = [batch.column(column)[0] for batch in batches if column in batch.schema.names]
    return PlayState(_only(said.as_py()))


def lines(rows: list[Row]) -> list[tuple[str, str]]:
    """(level, text) of a log."""
    return [(row.values["level"], row.values["text"]) for row in rows if "text" in row.values]


def states(rows: list[Row]) -> list[tuple[float, str]]:
    """(time, text) of a lane's changes; an empty text is a gap."""
    return [
        (row.at, row.values["state"])
        for row in rows
        if row.at is not None and "state" in row.values
    ]


def _only(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Row]]:
    folder = tmp_path_factory.mktemp("view")
    return view(folder, run())


def view(
    folder: Path, said: list[Said], *options: str, robots: tuple[str, ...] = ()
) -> dict[str, list[Row]]:
    bag = write_run(folder / "bag", *robots, said=said)
    assert main(["view", str(bag), "--save", str(folder / "run.rrd"), *options]) == 0
    return read_rows(folder / "run.rrd")


def test_a_recorded_run_is_opened_at_its_beginning_and_a_running_one_at_its_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view(tmp_path, run())
    assert play_state(tmp_path / "run.rrd") is PlayState.Playing  # from the start
    saved = tmp_path / "served.rrd"
    monkeypatch.setattr("rerun.RecordingStream.connect_grpc", lambda *_, **given: None)
    monkeypatch.setattr(
        "rerun.RecordingStream.send_blueprint", lambda _, shown: shown.save("run", str(saved))
    )
    for live, state in ((False, PlayState.Playing), (True, PlayState.Following)):
        Sink("rerun+http://127.0.0.1:9/proxy", live)
        assert play_state(saved) is state


def test_the_decisions_words_are_drafted_accepted_rejected_or_the_clouds_own(
    shown: dict[str, list[Row]],
) -> None:
    assert lines(shown["/tokens"]) == [
        ("drafted", "turn left medium"),
        ("accepted", "turn left"),
        ("rejected", "medium"),
        ("the cloud's own", "small"),
        ("answer", "decision 1: turn left small"),
    ]
    colours = [row.values["color"] for row in shown["/tokens"]]
    assert len(set(colours)) == len(colours)


def test_the_instruction_and_its_end_are_told(shown: dict[str, list[Row]]) -> None:
    assert lines(shown["/log/operator"]) == [("INFO", f"instruction: {INSTRUCTION}")]
    assert lines(shown["/log/instruction"]) == [("WARN", f"not_found {INSTRUCTION}")]
    assert lines(shown["/log/diagnostics/drafter"]) == [("WARN", "/drafter: no camera")]


def test_the_time_line_has_what_each_side_did_and_when(shown: dict[str, list[Row]]) -> None:
    lanes = {path.rpartition("/")[2][2:]: states(rows) for path, rows in shown.items()}
    assert lanes["decision"] == [(0.5, "decision 1"), (2.1, "")]
    assert lanes["robot_drafts"][:2] == [(0.75, "turn left medium"), (1.0, "")]
    (began, verdict), (ended, gap) = lanes["cloud_verifies"]
    assert (verdict, gap) == ("accepts 2", "")
    assert 1.0 <= began < ended <= 1.5 and ended - began == pytest.approx(0.125)
    assert lanes["robot_moves"] == [(1.6, "turn left small"), (2.2, "")]
    assert lanes["link_state"] == [(0.1, "cloud")]


def test_the_last_words_of_a_decision_do_not_end_the_next_that_overtook_them(
    tmp_path: Path,
) -> None:
    proposed = draft(0, ["turn"])
    proposed.request_id = "the next"
    said: list[Said] = [
        (0.0, "instruction_status", {"state": 2}),
        (0.5, "decode_request", message(kind=0)),
        (1.0, "decode_request", {"request_id": "the next", "kind": 0}),
        (1.1, "verified_tokens", settled(3, "", [], finished=True)),
        (1.2, "draft", proposed),
        (2.0, "verified_tokens", {"request_id": "the next", "finished": True}),
    ]
    rows = view(tmp_path, said)
    lane = states(rows["/timeline/1_decision"])
    assert lane == [(0.5, "decision 1"), (1.0, "decision 2"), (2.0, "")]


def test_what_an_earlier_version_said_of_its_motion_is_shown_as_far_as_it_goes() -> None:
    """Its bag has no codes and no action, but its own numbers."""
    entities = Entities()
    old = {"state": 4, "request_id": "r", "detail": "e_stop is on", "stops": 3}
    told = [*entities.on_message("nav_status", SimpleNamespace(**old), 1.0)]
    said = message(action=1, magnitude=0.3, verified=True, text="move forward small")
    told += entities.on_message("nav_command", said, 2.0)
    logged = [each for each in told if each.path.endswith("/navigator")]
    assert [each.at for each in logged] == [1.0, 2.0] and not [
        e for e in told if e.path == GOAL_PATH
    ][1:]


def test_camera_map_and_link_are_there(shown: dict[str, list[Row]]) -> None:
    [picture] = shown["/camera"]
    assert bytes(picture.values["blob"]) == jpeg()
    assert picture.values["media_type"] == "image/jpeg"
    assert shown["/words"][0].values["media_type"] == "image/png"
    [path] = shown["/map/path"]
    assert path.values["strips"] == [[0.0, 0.0, 0.0], [0.5, 0.0, 0.0]]
    [goal] = [row for row in shown["/map/goal"] if row.values.get("labels")]
    assert goal.values["labels"] == "turn left small"
    assert min(goal.values["vectors"][:2]) > 0  # ahead, and to the left
    trips = [row.values["scalars"] for row in shown["/link/time/round_trip"] if row.at is not None]
    assert trips == pytest.approx([500.0])
    up = [row.values["scalars"] for row in shown["/link/bytes/up"] if row.at is not None]
    assert up == [1234.0]


def test_words_without_a_verdict_are_not_accepted_and_lost_ones_are_a_gap(
    tmp_path: Path,
) -> None:
    said: list[Said] = [
        (1.0, "verified_tokens", settled(0, "turn left", [1, 2], verified=False)),
        (2.0, "verified_tokens", settled(5, "small", [6], verified=False)),
    ]
    assert lines(view(tmp_path, said)["/tokens"]) == [
        ("not verified", "turn left"),
        ("not received", "[3 tokens not received]"),
        ("not verified", "small"),
    ]


def test_messages_that_lie_or_are_damaged_are_shown_as_far_as_they_go(tmp_path: Path) -> None:
    said: list[Said] = [
        (0.1, "draft", {"words": ["turn"], "payload": b"\xff\x00"}),
        (0.2, "nav_status", {"state": 99}),
        (0.3, "/diagnostics", status(9, "of another age")),
        (0.4, "camera/image_raw", {"encoding": "yuv422", "width": 4, "height": 4}),
        (0.5, "camera/image_raw/compressed", {"format": "jpeg", "data": b"no picture"}),
        (0.6, "link_state", {"state": 0}),
        (0.7, "verdict", message(kind=3, text="the cloud has no model")),
        (0.8, "odom", {"pose": {"pose": {"position": {"x": float("nan")}}}}),
        (0.9, "instruction", {"data": "one for which there was no end" * 40}),
    ]
    rows = view(tmp_path, said)
    assert lines(rows["/log/problem"]) == [("ERROR", "the cloud has no model")]
    assert lines(rows["/log/diagnostics/drafter"]) == [("WARN", "/drafter: of another age")]
    assert lines(rows["/tokens"]) == [("drafted", "turn")]


def test_diagnostics_are_told_when_their_level_changes(tmp_path: Path) -> None:
    said: list[Said] = [(0.0, "instruction_status", {"state": 2})]
    told = [(2, "gone"), (2, "still gone"), (0, "there"), (2, "gone again")]
    said += [(at, "/diagnostics", status(*each)) for at, each in enumerate(told, 1)]
    assert lines(view(tmp_path, said)["/log/diagnostics/drafter"]) == [
        ("ERROR", "/drafter: gone"),
        ("INFO", "/drafter: there"),
        ("ERROR", "/drafter: gone again"),
    ]


def test_raw_pictures_are_shown_where_there_are_no_compressed_ones(tmp_path: Path) -> None:
    raw = {"encoding": "rgb8", "width": 2, "height": 2, "step": 6, "data": bytes(range(12))}
    [picture] = view(tmp_path, [(0.1, "camera/image_raw", raw)])["/camera"]
    assert bytes(picture.values["blob"]).startswith(b"\xff\xd8")


def test_a_namespaced_robot_is_found_and_of_several_one_is_chosen(tmp_path: Path) -> None:
    rows = view(tmp_path / "one", run(), robots=("dog",))
    assert lines(rows["/tokens"])[0] == ("drafted", "turn left medium")
    rows = view(tmp_path / "chosen", run(), "--namespace", "/cat", robots=("dog", "cat"))
    assert len(lines(rows["/tokens"])) == 5  # of one robot


@pytest.mark.parametrize("topic", ["nav_status", "instruction_status", "link_state"])
def test_a_bag_whose_status_is_a_text_is_refused_in_a_sentence(
    topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(KINDS, topic, "std_msgs/msg/String")
    bag = write_run(tmp_path / "bag", said=[(0.0, topic, {"data": "idle r 4 done"})])
    assert main(["view", str(bag), "--save", str(tmp_path / "r.rrd")]) == 2
    said = capsys.readouterr().err
    assert f"std_msgs/msg/String on /{topic}" in said and said.count("\n") == 1


def test_a_way_around_something_and_its_strip_are_shown_until_the_robot_is_idle() -> None:
    color, width = SimpleNamespace(r=0.1, g=0.8, b=0.3, a=0.25), SimpleNamespace(x=0.47)
    at, points = SimpleNamespace(x=0, y=0, z=0), [SimpleNamespace(x=x, y=x) for x in (0.0, 0.3)]
    pose = SimpleNamespace(position=at)
    way = SimpleNamespace(ns="way", id=1, points=points, scale=width, color=color, pose=pose)
    entities = Entities()
    shown = [*entities.on_message("markers", SimpleNamespace(markers=[way]), 1.0)]
    assert [each.path for each in shown if each.path.startswith("map/way")] == ["map/way/1"] * 2
    idle = SimpleNamespace(state=1, request_id="r", stops=4, code=1, detail="", action=None)
    assert "map/way" in {each.path for each in entities.on_message("nav_status", idle, 2.0)}


def test_foreign_topics_that_are_named_as_ours_are_left_out(tmp_path: Path) -> None:
    kinds = {
        "/odom": KINDS["odom"],
        "/e_stop": "std_msgs/msg/Empty",
        "/draft": "sensor_msgs/msg/LaserScan",
        "/markers": "visualization_msgs/msg/Marker",
        "/verdict": "std_msgs/msg/Int32",
    }
    store = types()
    with Writer(tmp_path / "bag", version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        for topic, kind in kinds.items():
            known = writer.add_connection(topic, kind, typestore=store)
            writer.write(known, 10**18, blank(kind))
        unknown = writer.add_connection("/cmd_vel", "my/msg/Speed", msgdef="bool a", rihs01="x")
        writer.write(unknown, 10**18, b"\0\1\0\0\1")
    messages = list(bag_messages(tmp_path / "bag"))
    assert [topic for _, topic, _ in messages] == ["odom"]


def test_it_is_shown_without_ros(tmp_path: Path) -> None:
    bag = write_run(tmp_path / "bag")
    hidden = "for m in ('rclpy', 'std_msgs', 'sensor_msgs', 'edge_cloud_spec.msg'): sys.modules[m]"
    program = f"import sys\n{hidden} = None\nfrom edge_cloud_spec.cli import main\nsys.exit(main())"
    command = [sys.executable, "-c", program, "view", str(bag), "--save", str(tmp_path / "r.rrd")]
    subprocess.run(command, check=True)
    assert lines(read_rows(tmp_path / "r.rrd")["/tokens"])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["nothing"], "there is no bag nothing"),
        (["BAG", "--save", "no/such/folder/run.rrd"], "cannot be written"),
        (["BAG", "--port", "0"], "must be two ports, from 1 to 65535"),
        (["BAG", "--port", "65536"], "cannot be served"),
        (["BAG", "--port", "9", "--data-port", "9"], "must be two ports"),
        (["BAG", "--host", "192.0.2.1"], "--host must be an address of this machine"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_a_sentence(
    options: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bag = str(write_run(tmp_path / "bag"))
    assert main(["view", *(bag if o == "BAG" else o for o in options)]) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.startswith("error: ") and said.count("\n") == 1
