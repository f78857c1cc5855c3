"""What a person sees of ``--help``, and of the libraries that models need."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edge_cloud_spec.cli import _COMMANDS

HELP = """
import sys
from edge_cloud_spec.cli import main
try:
    main([*sys.argv[1:], "--help"])
except SystemExit as end:
    loaded = {"torch", "transformers", "torchao"} & sys.modules.keys()
    sys.exit(f"loads {loaded}" if loaded else end.code)
"""


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("command", ["", *_COMMANDS])
def test_help_is_all_that_help_prints_and_loads_no_model_library(command: str) -> None:
    done = run(HELP, *command.split())
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: edge-cloud-spec")


def test_libraries_say_nothing_of_kernels_that_are_not_for_this_machine() -> None:
    loading = "from transformers import Qwen3VLForConditionalGeneration; import torchao"
    assert run(f"import edge_cloud_spec; {loading}").stderr == ""
    assert "torchao" in run("import torchao").stderr  # what is kept quiet
