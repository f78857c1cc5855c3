"""A real ``vllm serve`` of the embedded target on this machine's cores, in a venv of its own.

``python -m helpers.cloud.vllm_serve VENV`` installs it there, with what its wheel for CPUs lacks
where the package index has CUDA builds only; with a command behind it, that runs beside a server.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import AbstractContextManager
from pathlib import Path

from helpers.cloud.grpc_cloud import free_port
from helpers.wide_checkpoint import write_wide

from edge_cloud_spec.models import EMBEDDED

ROOT = Path(__file__).parents[3]
VERSION = "0.32.0"
START_S = 300.0
OPERATORS = {  # of torchvision that its Python part registers, though a CUDA build has none here
    name: f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    for name in ("nms", "qnms")
}
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_PLUGINS": "",
    "PYTHONPATH": str(ROOT),  # for the logits processor
}
OPTIONS = {
    "dtype": "float32",
    "max-model-len": "512",
    "max-num-seqs": "64",
    "block-size": "32",
    "limit-mm-per-prompt": json.dumps({"image": 1, "video": 0}),
    "max-logprobs": "-1",
    "logprobs-mode": "raw_logits",
    "generation-config": "vllm",
    "logits-processors": "edge_cloud_spec.cloud.vllm_plugin:Coupled",
    "enforce-eager": "",
    "enable-scale-out": "",
    "enable-prompt-tokens-details": "",
}


def install(venv: Path) -> None:
    """vLLM for CPUs, and what it needs on top; a venv that has it is left as it is."""
    if not (venv / "bin" / "vllm").exists():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        _pip(venv, "install", "--quiet", "--requirement", str(ROOT / "requirements" / "vllm.txt"))
    [packages] = (venv / "lib").glob("python*/site-packages")
    for package in ("torchaudio", "torchcodec"):  # which transformers imports if they are there
        if _fails(venv, package):
            _pip(venv, "uninstall", "--quiet", "--yes", package)
    if _fails(venv, "torchvision"):
        module = packages / "torchvision" / "_meta_registrations.py"
        lines = module.read_text("utf-8").splitlines()
        for name, schema in OPERATORS.items():
            at = lines.index(f'@torch.library.register_fake("torchvision::{name}")')
            lines.insert(
                at, f'torch.library.define("torchvision::{name}", "{schema[len(name) :]}")'
            )
        module.write_text("\n".join(lines) + "\n", "utf-8")
    # Its command asks for the version of a distribution of this name; the suffix chooses the code.
    named = packages / f"vllm-{VERSION}+cpu.dist-info"
    if not list(packages.glob("vllm-[0-9]*.dist-info")):
        named.mkdir()
        (named / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n"
        )


def _pip(venv: Path, *arguments: str) -> None:
    subprocess.run([venv / "bin" / "python", "-m", "pip", *arguments], check=True)


def _fails(venv: Path, package: str) -> bool:
    """Whether it is there, and cannot be imported."""
    program = f"import importlib.util as u; u.find_spec({package!r}) and __import__({package!r})"
    tried = [venv / "bin" / "python", "-c", program]
    return subprocess.run(tried, capture_output=True).returncode != 0


class VllmServe(AbstractContextManager["VllmServe"]):
    """The server's processes, a group of their own; ``url`` stays the same when they are started
    again."""

    def __init__(self, venv: Path, checkpoint: Path, log: Path) -> None:
        """log: where it writes what it says."""
        self._venv, self._checkpoint, self._log = venv, checkpoint, log
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, changes: dict[str, str | None] | None = None) -> None:
        """Start it, with these of its options changed (None: left out); RuntimeError: it does not
        come up."""
        named = {"host": "127.0.0.1", "port": str(self._port), **OPTIONS, **(changes or {})}
        given = [(f"--{name}", value) for name, value in named.items() if value is not None]
        words = [word for option in given for word in option if word]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [self._venv / "bin" / "vllm", "serve", self._checkpoint, *words],
                env=os.environ | ENVIRONMENT,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        end = time.monotonic() + START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end:
                self.kill()
                said = self._log.read_text("utf-8", "replace").splitlines()[-30:]
                raise RuntimeError("vllm serve does not come up:\n" + "\n".join(said))
            time.sleep(0.5)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/version", timeout=5):
                return True
        except (OSError, urllib.error.URLError):
            return False

    def metric(self, name: str) -> float:
        """A metric's sum over its labels."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=60) as reply:
            lines = reply.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if re.match(rf"{name}[ {{]", line))

    def kill_engine(self) -> None:
        """As where its device's memory ends: the engine is gone, the front is there."""
        group = str(self._process.pid)
        subprocess.run(["pkill", "-KILL", "-g", group, "-f", "EngineCore"], check=True)

    def kill(self) -> None:
        """As the kernel does where memory ends."""
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
            self._process = None

    def signal(self, number: int) -> None:
        """Send all its processes this signal."""
        if self._process is not None:
            os.killpg(self._process.pid, number)

    def __exit__(self, *_: object) -> None:
        self.kill()


def main(venv: Path, command: list[str]) -> int:
    """Install it; with a command, run that beside a server: URL in it becomes the address."""
    install(venv)
    if not command:
        return 0
    with tempfile.TemporaryDirectory() as folder:
        write_wide(EMBEDDED / "target", Path(folder) / "target")
        with VllmServe(venv, Path(folder) / "target", Path(folder) / "log") as server:
            server.start()
            words = [word.replace("URL", server.url) for word in command]
            return subprocess.run(words).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute(), sys.argv[2:]))
