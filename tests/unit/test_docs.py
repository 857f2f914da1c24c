"""Generated pages are what the code says now."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["settings.md", "cli.md"])
def test_reference_pages_are_fresh(page: str) -> None:
    path = ROOT / "docs" / "reference" / "generate.py"
    spec = importlib.util.spec_from_file_location("generate_reference", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (path.parent / page).read_text() == module.PAGES[page](), f"docs/reference/{page} is stale: run 'make docs'"
