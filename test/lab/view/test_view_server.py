"""The viewer's page: served where it was told to be, and ended with the command."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("rerun", reason="Rerun has no build for this Python")
pytest.importorskip("rosbags")
from helpers.cloud.grpc_cloud import free_port
from helpers.run_bag import write_run

from edge_cloud_spec_lab.view.command import ViewerAddress

OTHER = "127.0.0.2"  # an address of this machine that only who listens on all of them answers


def answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 5.0).close()
    except OSError:
        return False
    return True


@contextmanager
def viewing(bag: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], int, str]]:
    """The command, its port, and the URL that it prints, once all of the bag is shown."""
    port = free_port()
    ports = ["--port", str(port), "--data-port", str(free_port())]
    command = [sys.executable, "-m", "edge_cloud_spec.cli", "view", str(bag), *ports, *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = []
    try:
        for line in process.stdout:
            said.append(line)
            if "messages shown" in line:
                break
        [url] = [line.split()[1] for line in said if line.startswith("open ")]
        yield process, port, url
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
        process.stdout.close()


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("served") / "bag")


@pytest.mark.parametrize(("options", "others"), [([], False), (["--host", "0.0.0.0"], True)])
def test_the_page_is_served_to_this_machine_alone_unless_told_otherwise(
    bag: Path, options: list[str], others: bool
) -> None:
    with viewing(bag, *options) as (process, port, url):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30) as page:
            assert b"rerun" in page.read().lower()
        data = int(url.rpartition("%3A")[2].partition("%2F")[0])
        for one in (port, data):
            assert answers("127.0.0.1", one)
            assert answers(OTHER, one) == others
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert children
    assert not answers("127.0.0.1", port) and not answers("127.0.0.1", data)
    assert not any(Path(f"/proc/{child}").exists() for child in children)


def test_another_machines_browser_is_let_in_and_finds_the_data_there() -> None:
    endpoint = ViewerAddress("127.0.0.3", free_port(), free_port())
    assert endpoint.page.startswith(f"http://127.0.0.3:{endpoint.port}/?url=rerun%2Bhttp%3A%2F%2F")
    command = endpoint.command
    origin = command[command.index("--cors-allow-origin") + 1]
    assert endpoint.page.startswith(origin)
    anywhere = ViewerAddress("0.0.0.0", free_port(), free_port())
    assert socket.gethostname() in anywhere.page and not anywhere.is_loopback
    assert anywhere.data_url.startswith("rerun+http://127.0.0.1:")
