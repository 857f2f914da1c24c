"""House rules that the linters cannot see."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TRACKED_TEXT = [
    path
    for folder in ("src", "tests", "docs", "benchmarks", "examples")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".md", ".pyx", ".c", ".h", ".java", ".go", ".toml", ".json")
    and ".cache" not in path.parts
]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_says_what_it_is_for(path: Path) -> None:
    tree = ast.parse(path.read_text())
    docstring = ast.get_docstring(tree)
    assert docstring, f"{path} has no docstring"
    assert "TODO" not in path.read_text(), f"{path} has a TODO without an issue number"


def test_no_module_hides_behind_a_vague_name() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "misc", "base", "manager"}
    assert not [path for path in SOURCES if path.stem in vague]


def test_every_module_is_used() -> None:
    texts = {path: path.read_text() for path in SOURCES}
    entry_points = {"__init__", "__main__", "main", "plugin"}
    everything = "\n".join(texts.values())
    for path in SOURCES:
        if path.stem in entry_points or "kappamq" not in path.parts or path.parent.name == "kappamq":
            continue
        dotted = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        package, _, name = dotted.rpartition(".")
        by_package = rf"from {re.escape(package)} import [^\n]*\b{name}\b"
        assert dotted in everything or re.search(by_package, everything), f"{dotted} is imported by nobody"


@pytest.mark.parametrize("path", TRACKED_TEXT, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_names_this_machine(path: Path) -> None:
    text = path.read_text(errors="replace")
    for mark in ("/" + "work/", "/" + "root/", "repo." + "maven.apache", "files." + "pythonhosted"):
        assert mark not in text, f"{path} mentions {mark}"
