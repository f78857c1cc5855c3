"""What the documents name is there: links, files, symbols, and commands that our parsers take."""

from __future__ import annotations

import ast
import builtins
import fnmatch
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from statistics import fmean

import pytest
from helpers.documents import (
    LAUNCH,
    Link,
    Page,
    Symbols,
    defined_in,
    line_error,
    mention_error,
)
from helpers.parameters_page import NODES, page
from helpers.state_diagrams import with_diagrams

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
CODE = (ROOT / "edge_cloud_spec", ROOT / "lab/edge_cloud_spec_lab")
PAGES = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")]
PAGES.append(ROOT / "QUALITY_DECLARATION.md")
PAGES += sorted(DOCS.rglob("*.md"))

# Words of other packages, and names that only look like ours.
OTHERS = {
    *("Twist", "TwistStamped", "Bool", "String", "Request", "Odometry", "CompressedImage"),
    *("DynamicCache", "model.language_model", "model.visual"),  # transformers'
    *("Path", "Protocol", "Thread", "Future", "StopMove", "Move"),
    *("norm", "argmax", "softmax", "generate", "residual"),
    "sim/outcome",  # a topic
    *("robot.yaml", "robot.refused.yaml"),  # what commission writes
    "edge_cloud_spec.msg",  # what is built from msg/
}
FOREIGN = OTHERS | {
    *("asyncio", "cv2", "grpc", "hypothesis", "imageio", "mujoco", "np", "numpy", "os", "PIL"),
    *("queue", "rclpy", "threading", "time", "torch", "torchao", "transformers", "yaml"),
}
DATA = re.compile(r"\.(csv|gif|html|jpg|json|mcap|mp4|org|pem|png|safetensors|txt)$")
SOURCES = (".action", ".py", ".md", ".msg", ".proto", ".rst", ".rviz", ".toml", ".xml", ".yaml")


@cache
def symbols() -> Symbols:
    folders = ("action", "edge_cloud_spec", "examples", "lab", "launch", "msg")
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*"))]
    return Symbols(path for path in files if path.suffix in (".action", ".py", ".msg", ".proto"))


@cache
def folders() -> frozenset[str]:
    """The names that a path of ours may begin with; not what runs leave, such as reports."""
    left = {line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()}
    inside = [path for place in (ROOT, *CODE) for path in place.iterdir()]
    names = frozenset(path.name for path in inside if path.is_dir() and path.name[0] != ".")
    return names - left


@cache
def by_name() -> dict[str, list[Path]]:
    """What is in the folders of the root and in those within, by its own name."""
    found = defaultdict[str, list[Path]](list)
    for folder in folders():
        for path in (ROOT / folder).rglob("*"):
            found[path.name].append(path)
    return found


@cache
def words() -> frozenset[str]:
    """Every word of our files but the documents: topics, parameters, presets and tests too."""
    names = ("action", "edge_cloud_spec", "config", "lab", "launch", "msg", "requirements", "test")
    files = [file for name in names for file in (ROOT / name).rglob("*")]
    files += [
        ROOT / name for name in ("CMakeLists.txt", "Makefile", "package.xml", "pyproject.toml")
    ]
    texts = [
        file.read_text(encoding="utf-8")
        for file in files
        if file.suffix in (*SOURCES, ".txt", "") and file.is_file() and file != Path(__file__)
        if file.suffix != ".md"
    ]
    return frozenset(word for text in texts for word in re.findall(r"\w+", text))


def problems(path: Path, text: str) -> Iterator[str]:
    """What a page says that is not so, a sentence each."""
    page = Page(text)
    for link in page.links:
        yield from link_problems(path, page, link)
    for span in page.spans:
        yield from span_problems(path, span)
    for line in page.commands:
        yield line_error(line)


def link_problems(path: Path, page: Page, link: Link) -> Iterator[str]:
    target = (path.parent / link.path).resolve() if link.path else path
    if not target.exists():
        yield f"link to {link.target}: there is no such file"
        return
    if link.anchor:
        there = page if target == path else Page(target.read_text())
        if link.anchor not in there.anchors:
            yield f"link to {link.target}: there is no such heading"
    label = link.text.strip("`")
    if target.suffix == ".py" and re.fullmatch(r"[\w.]+", label) and label not in target.parts:
        owner, _, name = label.rpartition(".")
        found = Symbols([target])
        top = defined_in(ast.parse(target.read_text()))
        if not (found.knows(label) if owner else name in top):
            yield f"link to {link.target}: {label} is not defined there"


def span_problems(path: Path, span: str) -> Iterator[str]:
    if re.search(r"\s", span):
        yield mention_error(span)
        return
    if span in OTHERS or not span[0].isalnum():
        return
    file, _, symbol = span.replace("::", ":").partition(":")
    begins_as_ours = "/" in file and file.partition("/")[0] in folders()
    if re.fullmatch(r"[\w./*-]+", file) and (begins_as_ours or file.endswith(SOURCES)):
        found = files_of(path, file)
        if not found:
            yield f"`{span}`: there is no such file"
        elif symbol and not Symbols(found).knows(symbol):
            yield f"`{span}`: {symbol} is not defined there"
        return
    name = re.sub(r"\(.*\)$", "", span)
    is_call = name != span and name.isidentifier() and not hasattr(builtins, name)
    is_dotted = re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", name) and not DATA.search(name)
    is_class = re.fullmatch(r"[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*", name)
    is_foreign = bool({name, name.partition(".")[0]} & FOREIGN)
    if (is_call or is_dotted or is_class) and not (is_foreign or symbols().knows(name)):
        yield f"`{span}`: there is no such name in the package"
    elif not is_class and re.fullmatch(r"[A-Za-z]\w*_\w*", name) and name not in words() | FOREIGN:
        yield f"`{span}`: there is no such word in any source file"


def files_of(path: Path, name: str) -> list[Path]:
    """The files that a name may mean, from the root, the package or the page; NAME is any word."""
    pattern = re.sub(r"(?<![\w-])[A-Z]{2,}(?=[./]|$)", "*", name) if "." in name else name
    pattern = name if (ROOT / name).exists() else pattern
    places = [ROOT, *CODE, path.parent]
    found = [file for place in places for file in place.glob(pattern.rstrip("/"))]
    found += [file for place in places for file in place.glob(pattern + ".py") if "/" in name]
    if "/" not in name:
        found += [file for name in fnmatch.filter(by_name(), pattern) for file in by_name()[name]]
    return [file for file in found if ".venv" not in file.parts]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_what_a_page_names_is_there(path: Path) -> None:
    found = list(filter(None, problems(path, path.read_text())))
    assert not found, "\n".join(found)


def test_every_page_of_docs_is_once_in_the_index_that_the_readme_links() -> None:
    index = DOCS / "README.md"
    listed = [link.path for link in Page(index.read_text()).links if link.path[0] != "."]
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - {index.name}
    assert sorted(listed) == sorted(pages)
    readme = Page(PAGES[0].read_text())
    assert "docs/README.md" in {link.path for link in readme.links}
    assert len(readme.text.split()) <= 800, "what is for few belongs into docs/"


def test_the_page_of_parameters_is_what_the_code_declares() -> None:
    written = (DOCS / "parameters.md").read_text()
    assert written == page(), "run: make parameters"
    sources = [file.read_text() for folder in CODE for file in folder.rglob("*.py")]
    declared = re.findall(r"\b[Pp]arameters\((?:self, )?(\w+)\(\)", "\n".join(sources))
    assert len(declared) > 5 and {type(each).__name__ for each in NODES.values()} == set(declared)


def test_the_state_diagrams_are_those_of_the_tables() -> None:
    written = (DOCS / "architecture.md").read_text()
    assert written == with_diagrams(written), "run: make diagrams"
    with pytest.raises(ValueError, match="0 diagrams"):
        with_diagrams(written.replace("<!-- from edge", "<!-- of edge"))


def kept(suite: str, preset: str, profile: str = "fsd-go2", figure: str = "speedup") -> list[float]:
    """The figure of a preset in the kept runs of a suite, a seed each."""
    runs = [
        json.loads(each.read_text()) for each in (DOCS / "figures").glob(f"{suite}_[0-9]*.json")
    ]
    rows = [row for run in runs for row in run["rows"]]
    mine = [row for row in rows if (row["preset"], row["cost_profile"]) == (preset, profile)]
    return [row[figure] for row in mine]


def test_a_figure_of_the_readme_is_that_of_its_source() -> None:
    readme = PAGES[0].read_text()
    table = (DOCS / "faults.md").read_text().partition("<!-- table of bench faults -->")[2]
    assert f"; {len(re.findall(r'^[|] [a-z]', table, re.MULTILINE)) - 1} [faults]" in readme
    ours, alone = (
        f"{fmean(kept('mission', preset, figure='mission_s_mean')):.0f}"
        for preset in ("auto", "cloud_ar")
    )
    shares = kept("mission", "auto", figure="same_decisions_as_cloud_ar")
    rooms = sum(kept("mission", "auto", figure="scenes"))
    same = f"{rooms * fmean(shares):.0f} of {rooms}"
    assert f"in {ours} s, by its cloud alone in {alone} s, deciding the same in {same}" in readme
    assert f"in {same.replace('of', 'of the')}" in (DOCS / "benchmarks.md").read_text()

    def over(profile: str) -> str:
        found = kept("pipelines", "auto", profile)
        assert len(found) == 3
        return f"{fmean(found):.2f} ± {(max(found) - min(found)) / 2:.2f}"

    llama = " and ".join(over(f"pico-llama-{text}") for text in ("gsm8k", "humaneval"))
    assert f"Go2 {over('fsd-go2')} (" in readme and f"Llama {llama} (" in readme
    measured = (DOCS / "benchmarks.md").read_text()
    assert set(re.findall(r"\d[.]\d+ to \d[.]\d+ ms, p99 \d+ to \d+", readme)) == set(
        re.findall(r"`e_stop` .*?(\d[.]\d+ to \d[.]\d+ ms, p99 \d+ to \d+)", measured)
    )
    mtp, beside = (
        f"{fmean(kept('mission_head', preset, figure='mission_s_mean')):.0f}"
        for preset in ("cloud_mtp", "auto")
    )
    assert f"takes {mtp} s, with `auto` {beside} s" in readme
    rivals = json.loads((DOCS / "figures/rivals.json").read_text())["rows"]
    over_best = [row["auto_over_best"] for row in rivals]
    assert len(over_best) == 20
    assert f"| tokens {min(over_best):.2f} to {max(over_best):.2f}, mission time " in readme
    ratios = re.findall(r"\b(7B|32B|72B) (0[.]\d+) [(](0[.]\d+)[)]", readme)
    assert len(ratios) == 3 and all(f"| {' | '.join(each)} |" in measured for each in ratios)


def spoken() -> str:
    """Each string of the package, a line each, with a NUL for each value that is put into it."""
    lines = []
    for file in sorted(file for folder in CODE for file in folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            texts = [part.value if isinstance(part, ast.Constant) else "\0" for part in parts]
            lines.append("".join(text for text in texts if isinstance(text, str)))
    return "\n".join(lines)


def test_the_sentences_of_the_page_by_symptom_are_the_programs_own() -> None:
    blocks = (DOCS / "troubleshooting.md").read_text().split("\n\n")
    tables = [block for block in blocks if block.startswith("| what you read")]
    cells = [row.split(" | ")[0] for table in tables for row in table.splitlines()]
    spans = [span for cell in cells for span in re.findall(r"`([^`]+ [^`]+)`", cell)]
    parts = [part.strip() for span in spans for part in re.split(r"\b[A-Z]{3,}\b", span)]
    said = spoken()
    assert len(parts) > 40 and not [part for part in parts if part not in said]


WRONG = {
    "a file": ("[x](edge_cloud_spec/decoding/none.py)", "no such file"),
    "an image": ("![x](docs/none.gif)", "no such file"),
    "a heading": ("# One\n[x](#two)", "no such heading"),
    "a heading elsewhere": ("[x](CONTRIBUTING.md#none-of-it)", "no such heading"),
    "a label": ("[`resample`](edge_cloud_spec/decoding/accept.py)", "resample is not defined"),
    "a path": ("see `decoding/none.py`", "no such file"),
    "a bare file": ("see `none.py`", "no such file"),
    "a place in a file": ("see `decoding/accept.py:resample`", "resample is not defined"),
    "a module": ("see `edge.none`", "no such name"),
    "a class": ("see `Draftt`", "no such name"),
    "a method": ("see `Draft.childs`", "no such name"),
    "a function": ("see `resamples()`", "no such name"),
    "a topic": ("on `verified_tocens`", "no such word"),
    "a test": ("`test_nothing_of_the_kind` shows it", "no such word"),
    "a constant": ("at most `MAX_NODESS`", "no such word"),
    "a parameter": ("see `output.stop_budge`", "no such name"),
    "an option": ("```sh\nedge-cloud-spec demo --sed 3\n```", "unrecognized arguments: --sed"),
    "a value": (
        "```sh\nedge-cloud-spec demo --rule lazy\n```",
        "--rule must be one of",
    ),
    "a suite": ("```sh\nA=1 edge-cloud-spec bench none > x\n```", "invalid choice: 'none'"),
    "a continued line": ("```sh\nedge-cloud-spec serve \\\n  --none\n```", "arguments: --none"),
    "a target": ("```sh\ncd x && make none\n```", "no target none"),
    "a variable": ("```sh\nmake demo ARG=1\n```", "no variable ARG"),
    "a demo's option": ('```sh\nmake demo ARGS="--none"\n```', "arguments: --none"),
    "an argument": (f"```sh\n{LAUNCH} simm:=true\n```", "no argument simm:=true"),
    "a mentioned option": ("give `bench mission --none 3`", "no option --none"),
    "a mentioned suite": ("see `bench none --json FILE`", "no subcommand none"),
    "a mentioned target": ("run `make none`", "no target none"),
}
RIGHT = """# A `page`, and more
[x](README.md) [y](#a-page-and-more) [`resample`](edge_cloud_spec/decoding/split.py) [z](https://x.y/z)
[`Drafts.wants`](edge_cloud_spec/edge/drafts.py)
[`faults`](lab/edge_cloud_spec_lab/bench/faults/suite.py)
[`rounds.py`](edge_cloud_spec/edge/rounds.py)
`decoding/accept.py`, `accept.py`, `decoding/accept.py:rejection`, `config/presets/NAME.yaml`,
`docs/`, `bringup/graph`, `camera/image_raw`, `std_msgs/String`, `/models/small`, `rooms.json`,
`Draft`, `Draft.children`, `speculation.exits`, `output.stop_nudge`, `Verdict.leads_to`, `cloud_ar`,
`nav_status`, `MAX_NODES`, `ROS_DOMAIN_ID`,
`test_package_xml_and_the_python_packages_have_one_version`,
`resample(...)`, `min(1, P/Q)`, `torch.compile`, `Twist`, `edge_cloud_spec.bringup.graph`
```sh
edge-cloud-spec bench mission --scenes 100 --json rooms.json   # a comment
edge-cloud-spec serve --address 0.0.0.0:50151 \\
  --token-file token
source .venv/bin/activate && make demo PYTHON=python3.12 ARGS="--seed 3 --rule coupled"
ros2 launch edge_cloud_spec go2_nav.launch.py sim:=false camera:=/camera
```
`decode --preset PATH`, `bench SUITE`, `serve --keep`, `make lint`, `train tiny --evaluate`
```mermaid
make nothing of this
```
"""


@pytest.mark.parametrize("case", WRONG)
def test_what_is_not_there_is_found(case: str) -> None:
    text, complaint = WRONG[case]
    (found,) = filter(None, problems(ROOT / "README.md", text))
    assert complaint in found


def test_what_is_there_is_no_problem() -> None:
    assert list(filter(None, problems(ROOT / "README.md", RIGHT))) == []


# For cost profile, reply timeout, commanded motion, registry and server drafting.
GONE = re.compile("regime|patience|ledger|roster|own_?drafting", re.IGNORECASE)
NAMES = re.compile(r"^ *(?:class|def) +(\w+)|self\.(\w+) *[:=]|^ *(\w+): ", re.MULTILINE)
OLD = "class OwnDrafting:\n    patience: float\n    def ledger(self):\n        self._regime = 1\n"


def gone(text: str) -> list[str]:
    """The names that a text of Python defines with a word that is gone."""
    return [name for found in NAMES.findall(text) for name in found if GONE.search(name)]


ASSIGNED = re.compile(r"^([A-Z][A-Z0-9_]*(?:, [A-Z][A-Z0-9_]*)*)(?:: [^=\n]+)? = ", re.MULTILINE)
SHARED_NAMES = 11  # of constants that several modules have; it may only fall


def shared(modules: Iterable[str]) -> list[str]:
    """The names of constants that several of these texts of Python assign."""
    names = Counter(
        name
        for text in modules
        for name in {one for found in ASSIGNED.findall(text) for one in found.split(", ")}
    )
    return sorted(name for name, times in names.items() if times > 1)


def test_no_further_name_of_a_constant_has_a_value_for_each_module() -> None:
    assert shared(["FAR, NEAR = 1, 2\n", "X: int = 1\nFAR = 3\nFAR = 4\n", "X = 2"]) == ["FAR", "X"]
    folders = ("edge_cloud_spec", "lab")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    found = shared(file.read_text() for file in files)
    assert files and len(found) <= SHARED_NAMES, "give it its subject and unit: " + " ".join(found)


@pytest.mark.parametrize("folder", ["edge_cloud_spec", "lab", "test", "launch", "examples"])
def test_a_word_that_has_gone_for_the_fields_own_does_not_come_back(folder: str) -> None:
    assert gone(OLD) == ["OwnDrafting", "patience", "ledger", "_regime"]
    found = {
        str(file): gone(file.read_text())
        for file in (ROOT / folder).rglob("*.py")
        if file != Path(__file__)
    }
    assert found and not {file: names for file, names in found.items() if names}
