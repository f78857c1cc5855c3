"""pip's build: setuptools packs the Python code, CMake generates and compiles edge_cloud_spec.msg.

colcon never reads this file (package.xml says ament_cmake). Without a ROS 2 to build against, as on
a cloud machine, or with EDGE_CLOUD_SPEC_MESSAGES=0 in the environment, the package is built without
its messages.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Command, Distribution, setup
from setuptools.command.build import build

PACKAGE = "edge_cloud_spec"
ROOT = Path(__file__).resolve().parent


def ament_prefixes() -> list[str]:
    """The prefixes that CMake searches: those of a sourced ROS 2, then the running venv."""
    sourced = [p for p in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep) if p]
    candidates = [*sourced, sys.prefix]
    return [p for p in dict.fromkeys(candidates) if (Path(p) / "share/ament_index").is_dir()]


def has_generators(prefixes: list[str]) -> bool:
    return any((Path(p) / "share/rosidl_default_generators").is_dir() for p in prefixes)


def build_environment(prefixes: list[str]) -> dict[str, str]:
    """pip's build isolation hides the venv from its children; rosidl's generators live there."""
    libraries = [str(d) for p in prefixes for d in Path(p).glob("lib/python3*/*-packages")]
    kept = [d for d in os.environ.get("PYTHONPATH", "").split(os.pathsep) if d]
    return {
        **os.environ,
        "AMENT_PREFIX_PATH": os.pathsep.join(prefixes),
        "CMAKE_PREFIX_PATH": os.pathsep.join(prefixes),
        "PYTHONPATH": os.pathsep.join([*libraries, *(d for d in kept if "pip-build-env" not in d)]),
    }


class BuildMessages(Command):
    """Generate, compile and stage msg/ and action/, then hand the staged files to setuptools."""

    description = "build the ROS 2 messages"
    user_options = ()
    editable_mode = False

    def initialize_options(self) -> None:
        self.build_lib = None
        self.build_temp = None

    def finalize_options(self) -> None:
        names = ("build_lib", "build_temp")
        self.set_undefined_options("build", *((name, name) for name in names))

    def run(self) -> None:
        if os.environ.get("EDGE_CLOUD_SPEC_MESSAGES") == "0":
            return
        prefixes = ament_prefixes()
        if not has_generators(prefixes):
            self.warn(f"no ROS 2 found: {PACKAGE} is built without its messages")
            return
        stage = Path(self.build_temp).resolve() / "stage"
        self.compile(prefixes, stage)
        for source in sorted(p for p in stage.rglob("*") if p.is_file()):
            self.place(source, source.relative_to(stage))

    def compile(self, prefixes: list[str], stage: Path) -> None:
        work = Path(self.build_temp).resolve() / "messages"
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(stage, ignore_errors=True)
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        configure = [
            *("cmake", "-S", str(ROOT), "-B", str(work), *generator),
            f"-DCMAKE_INSTALL_PREFIX={stage}",
            f"-DPython3_EXECUTABLE={sys.executable}",
            *("-DCMAKE_BUILD_TYPE=Release", "-DBUILD_TESTING=OFF"),
            "-DEDGE_CLOUD_SPEC_INSTALL_PYTHON=OFF",
        ]
        environment = build_environment(prefixes)
        jobs = str(os.cpu_count() or 1)
        subprocess.run(configure, env=environment, check=True)
        subprocess.run(
            ["cmake", "--build", str(work), "--target", "install", "--parallel", jobs],
            env=environment,
            check=True,
        )

    def place(self, source: Path, where: Path) -> None:
        """One staged file: Python modules beside ours, all else at its place under the prefix."""
        in_libraries = any(part.endswith("-packages") for part in where.parts)
        if in_libraries and PACKAGE in where.parts:
            inner = Path(*where.parts[where.parts.index(PACKAGE) :])
            generated_only = inner == Path(PACKAGE, "__init__.py") or source.suffix in (
                ".c",
                ".pyc",
            )
            if generated_only:
                return
            if not self.editable_mode:
                target = Path(self.build_lib) / inner
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
                return
            # The checkout has the code. Without __init__.py, what lands in site-packages is only a
            # portion of the package, which the checkout's extend_path picks up.
            platlib = os.path.relpath(sysconfig.get_path("platlib"), sysconfig.get_path("data"))
            where = Path(platlib) / inner
        elif in_libraries:
            return
        self.distribution.data_files.append((str(where.parent), [os.path.relpath(source)]))

    def get_source_files(self) -> list[str]:
        interfaces = [*ROOT.glob("msg/*"), *ROOT.glob("action/*")]
        return [os.path.relpath(p, ROOT) for p in [ROOT / "CMakeLists.txt", *interfaces]]

    def get_outputs(self) -> list[str]:
        return []

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class Build(build):
    sub_commands = (*build.sub_commands, ("build_messages", None))


def builds_messages() -> bool:
    return os.environ.get("EDGE_CLOUD_SPEC_MESSAGES") != "0" and has_generators(ament_prefixes())


class PlatformDistribution(Distribution):
    """A wheel with compiled messages is not for every machine."""

    def has_ext_modules(self) -> bool:
        return builds_messages()

    def has_data(self) -> bool:
        """Asked for by setuptools' editable install; its Distribution has only has_data_files."""
        return bool(self.data_files)


def share_files() -> list[tuple[str, list[str]]]:
    """launch/ and config/ under share/edge_cloud_spec, folder by folder."""
    files: list[tuple[str, list[str]]] = [(f"share/{PACKAGE}", ["package.xml", "LICENSE"])]
    for top in ("launch", "config"):
        for folder in [ROOT / top, *(p for p in (ROOT / top).rglob("*") if p.is_dir())]:
            if folder.name != "__pycache__":
                names = [os.path.relpath(p, ROOT) for p in sorted(folder.iterdir()) if p.is_file()]
                files.append((f"share/{PACKAGE}/{os.path.relpath(folder, ROOT)}", names))
    return files


setup(
    distclass=PlatformDistribution,
    cmdclass={"build": Build, "build_messages": BuildMessages},
    data_files=share_files(),
)
