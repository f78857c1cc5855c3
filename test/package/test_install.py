"""What the documents install beside a ROS 2 from apt leaves its numpy, which its messages need."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from edge_cloud_spec.errors import _ALONE, _OPTIONAL, how_to_install

ROOT = Path(__file__).resolve().parents[2]
NAMES = sorted(path.name for path in (ROOT / "requirements").glob("*.txt"))
ELSEWHERE = {"dev.txt", "numpy.txt", "ros.txt", "vllm.txt"}  # never beside a ROS from apt


def requirements(name: str) -> Iterator[Requirement]:
    """What a file names, with the files that it includes."""
    for line in (ROOT / "requirements" / name).read_text().splitlines():
        if line.startswith("-r "):
            yield from requirements(line.split()[1])
        elif line and line[0] not in "#-":
            yield Requirement(line)


def numpy_of_apt() -> str:
    (pin,) = (each for each in requirements("apt.txt") if each.name == "numpy")
    return str(pin.specifier).removeprefix("==")


def documented() -> list[list[str]]:
    """The arguments of each `pip install` of the documents that names files, in their order."""
    pages = [ROOT / "docs/deployment.md", *sorted(ROOT.rglob("docs/*.md")), ROOT / "README.md"]
    lines = [
        line for page in pages for line in re.findall(r"pip (install [^`#\n]*)", page.read_text())
    ]
    return [shlex.split(line) for line in dict.fromkeys(lines) if "requirements/" in line]


def files_of(line: list[str]) -> list[str]:
    return [Path(word).name for word in line if word.endswith(".txt")]


def needs_another_numpy(name: str, seen: set[str]) -> Iterator[str]:
    """The packages, of this one and those that it needs, that do not admit the numpy of apt."""
    if name in seen:
        return
    seen.add(name)
    try:
        needed = [Requirement(text) for text in requires(name) or ()]
    except PackageNotFoundError:
        return
    for each in needed:
        if each.marker is None or each.marker.evaluate({"extra": ""}):
            if each.name == "numpy" and not each.specifier.contains(numpy_of_apt()):
                yield f"{name} needs {each}"
            yield from needs_another_numpy(each.name, seen)


def test_numpy_is_pinned_where_a_machine_chooses_and_nowhere_else() -> None:
    given = [(name, each) for name in NAMES for each in requirements(name) if each.specifier]
    pinned = {name for name, each in given if each.name == "numpy"}
    assert pinned == {"apt.txt", "numpy.txt"}
    assert "-c apt.txt" in (ROOT / "requirements/robot.txt").read_text().splitlines()
    robot = (ROOT / "docs/deployment.md").read_text().partition("--system-site-packages")[2]
    first, second = re.findall(r"^pip .*", robot, re.MULTILINE)[:2]
    assert first.startswith("pip config --site set global.constraint ") and "apt.txt" in first
    assert "torch.txt" in second, "before anything is installed"


def test_what_is_installed_with_what_it_needs_admits_the_numpy_of_a_ros_from_apt() -> None:
    whole = {name for line in documented() if "--no-deps" not in line for name in files_of(line)}
    assert {"robot.txt", "sim.txt", "openai.txt"} <= whole, whole
    seen: set[str] = set()
    names = {each.name for file in whole - ELSEWHERE for each in requirements(file)}
    names |= {Requirement(_OPTIONAL[package]).name for package in _OPTIONAL}
    assert not [text for name in sorted(names) for text in needs_another_numpy(name, seen)]
    assert {"mujoco", "transformers", "rosbags"} <= seen


def test_what_does_not_admit_it_is_installed_alone() -> None:
    """The control of the test above."""
    for file in set(_ALONE.values()):
        lines = [line for line in documented() if f"{file}.txt" in files_of(line)]
        assert lines and all("--no-deps" in line for line in lines)
    assert all("--no-deps" in how_to_install(package) for package in _ALONE)
    pytest.importorskip("rerun")
    assert list(needs_another_numpy("rerun-sdk", set())) == ["rerun-sdk needs numpy>=2"]


def test_nothing_advises_to_install_this_package_from_an_index() -> None:
    """It is on none; a stranger could put one of its name there."""
    ours = re.compile(r"pip install[^\n]*[ '\"]edge[-_]cloud[-_]spec(?:[\[ '\"`)]|$)", re.MULTILINE)
    assert ours.search("pip install 'edge-cloud-spec[qwen]'")
    assert ours.search("pip install --no-deps edge-cloud-spec  # x")
    folders = ("edge_cloud_spec", "docs", "examples", "launch", "requirements", "docker")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*") if file.is_file()]
    texts = [file for file in files if file.suffix in (".py", ".md", ".txt", ".Dockerfile")]
    assert not [file for file in [*texts, ROOT / "README.md"] if ours.search(file.read_text())]


class Robot:
    """An environment in which pip says what it would install, and then believes that it has."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False)
        (self.packages,) = folder.glob("lib/*/site-packages")
        self._report = folder / "report.json"
        self._pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python")]
        self._pip += [
            "--isolated",
            "--disable-pip-version-check",
            "--timeout",
            "5",
            "--retries",
            "0",
        ]

    def install(self, *arguments: str) -> str:
        """Empty if pip would install this; else what it says."""
        told = ["--dry-run", "--quiet", "--report", str(self._report)]
        given = ["-c", str(ROOT / "requirements/apt.txt"), *arguments]
        argv = [*self._pip, "install", "--only-binary", ":all:", *told, *given]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=500)
        if done.returncode:
            return done.stderr
        for each in json.loads(self._report.read_text())["install"]:
            made = each["metadata"]
            self.has(made["name"], made["version"], made.get("requires_dist", ()))
        return ""

    def has(self, name: str, version: str, needed: object = ()) -> None:
        """Make pip believe that this package is there."""
        assert isinstance(needed, (list, tuple))
        folder = self.packages / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {text}" for text in needed]
        (folder / "METADATA").write_text("\n".join(lines) + "\n")


@pytest.mark.skipif(
    "EDGE_CLOUD_SPEC_INDEX" not in os.environ or sys.version_info >= (3, 13),
    reason="asks a package index for minutes: make installs (Python 3.12 or older, as of ROS 2)",
)
def test_each_line_that_is_documented_beside_a_ros_from_apt_leaves_its_numpy(
    tmp_path: Path,
) -> None:
    robot, tried = Robot(tmp_path / "venv"), set()
    robot.has("numpy", numpy_of_apt())
    (torch,) = requirements("torch.txt")
    robot.has("torch", str(torch.specifier).removeprefix("=="))  # hundreds of MB
    if why := robot.install("rosbags"):
        pytest.skip(f"what pip would install is not known without a package index: {why[-200:]}")
    for line in documented():
        if set(files_of(line)) & (ELSEWHERE | {"torch.txt", "fleet.txt", "llama.txt"}):
            continue  # large, or built from source; and those of the cloud
        files = [str(ROOT / "requirements" / name) for name in files_of(line)]
        alone = ["--no-deps"] if "--no-deps" in line else []
        assert not robot.install(*alone, *(word for file in files for word in ("-r", file))), line
        tried |= {*files_of(line)}
    assert {"robot.txt", "sim.txt", "go2.txt", "view.txt", "openai.txt", "metrics.txt"} <= tried
    (left,) = robot.packages.glob("numpy-*")
    assert left.name == f"numpy-{numpy_of_apt()}.dist-info"
    assert "conflict" in robot.install("rerun-sdk>=0.41"), "the control: pip refuses what breaks it"
