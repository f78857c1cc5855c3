"""No process of ours looks up a name, reaches another machine, or writes an id of this one.

That is docs/privacy.md. Seen in C, past Python: see ``helpers.lookups``. A demo with all its nodes
asks nobody either: ``test_demo``.
"""

from __future__ import annotations

import importlib
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.cloud.grpc_cloud import free_port
from helpers.lookups import Watched, assert_nothing

import edge_cloud_spec

ROOT = Path(__file__).resolve().parents[2]
CLI = [sys.executable, "-m", "edge_cloud_spec.cli"]
PICTURE = str(ROOT / "examples/blue_box.jpg")


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


@pytest.mark.parametrize(
    ("code", "asked"),
    [
        ("import socket; socket.getaddrinfo('python.invalid', 1)", "name python.invalid"),
        ("import socket; socket.gethostbyname('old.invalid')", "name old.invalid"),
        (
            "import ctypes; ctypes.CDLL(None).getaddrinfo(b'c.invalid', None, None, None)",
            "name c.invalid",
        ),
        (
            "import grpc; c = grpc.insecure_channel('grpc.invalid:1')\n"
            "grpc.channel_ready_future(c).result(timeout=3)",
            "grpc.invalid|:53",
        ),
        ("import socket; socket.gethostbyaddr('192.0.2.7')", "name of an address"),
        ("import socket; socket.create_connection(('192.0.2.7', 443))", "address 192.0.2.7:443"),
        (
            "import socket; socket.socket(2, 2).sendto(b'x', ('127.0.0.53', 53))",
            "address 127.0.0.53:53",
        ),
        ("open(__import__('os').path.expanduser('~/deviceid'), 'w')", ""),
    ],
)
def test_what_asks_is_seen_whatever_it_asks_by(watched: Watched, code: str, asked: str) -> None:
    """The control of the tests below."""
    watched.run([sys.executable, "-c", code])
    assert re.search(asked, "\n".join(watched.asked)) and bool(asked) == bool(watched.asked)
    with pytest.raises(AssertionError):
        assert_nothing(watched)


# One process: each would import torch and transformers anew.
TOGETHER = """
import os, signal, sys, threading
from edge_cloud_spec.cli import main
address, metrics, picture = sys.argv[1:]
def ask():
    input()  # the verifier serves
    print("decode", main(["decode", picture, "find the blue box", "--cloud", address]))
    print("doctor", main(["doctor", "--cloud", address]), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
threading.Thread(target=ask).start()
sys.exit(main(["serve", "--address", address, "--metrics", metrics]))
"""


def test_serve_decode_and_doctor_ask_nobody_but_the_verifier(watched: Watched) -> None:
    address, metrics = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    with subprocess.Popen(
        [sys.executable, "-c", TOGETHER, address, metrics, PICTURE],
        env=watched.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert any(line.startswith("serving on") for line in process.stdout)
        said, errors = process.communicate("\n")
    assert process.returncode == 0
    news = [line for line in errors.splitlines() if not line.startswith("INFO ")]
    assert not news, "no kernels that are not for here"
    assert "\ndecode 0\n" in said and f"cloud: {address} serves" in said
    assert_nothing(watched)


def test_the_viewer_and_its_server_ask_nobody(watched: Watched, tmp_path: Path) -> None:
    pytest.importorskip("rerun", reason="Rerun has no build for this Python")
    from helpers.run_bag import write_run

    ports = ["--port", str(free_port()), "--data-port", str(free_port())]
    with subprocess.Popen(
        [*CLI, "view", str(write_run(tmp_path / "bag")), *ports],
        env=watched.environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as view:
        assert view.stdout is not None
        said = []
        for line in view.stdout:
            said.append(line)
            if "messages shown" in line:
                break
        view.terminate()
        view.stdout.read()
    assert "messages shown" in said[-1]
    assert "notebook=1" in "".join(said), "where Rerun's page tells its makers nothing"
    assert_nothing(watched)


LIBRARIES = {  # what each does when it is used, after our package is imported
    "onnxruntime": "import onnxruntime, time; onnxruntime.get_available_providers(); "
    "onnxruntime.SessionOptions(); from onnxruntime.datasets import get_example as example; "
    "onnxruntime.InferenceSession(example('sigmoid.onnx')); time.sleep(2)",
    "huggingface_hub": "from huggingface_hub.utils import send_telemetry; "
    "send_telemetry('edge'); import time; time.sleep(2)",
}


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_that_reports_to_its_makers_does_not_under_our_package(
    watched: Watched, name: str
) -> None:
    pytest.importorskip(name)
    done = watched.run([sys.executable, "-c", f"import edge_cloud_spec; {LIBRARIES[name]}"])
    assert done.returncode == 0, done.stderr
    assert_nothing(watched)
    watched.run([sys.executable, "-c", LIBRARIES[name]])
    assert watched.asked or watched.written, "it would without"


def test_what_is_kept_quiet_of_kernels_would_be_said_without_our_package(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    torchao = pytest.importorskip("torchao")
    caplog.clear()
    importlib.reload(torchao)
    assert not caplog.records
    monkeypatch.setattr(logging.getLogger("torchao"), "filters", [])
    importlib.reload(torchao)
    assert caplog.records


def test_a_variable_that_is_set_stays(watched: Watched) -> None:
    watched.environment["DO_NOT_TRACK"] = "0"
    code = "import edge_cloud_spec, os; print(os.environ['DO_NOT_TRACK'])"
    assert watched.run([sys.executable, "-c", code]).stdout == "0\n"


def test_the_page_names_every_switch() -> None:
    page = (ROOT / "docs/privacy.md").read_text()
    assert not [name for name in edge_cloud_spec.QUIET if f"`{name}=" not in page]
