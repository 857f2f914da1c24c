"""The README's Python blocks run, in order, against a cluster."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kappamq.testing import ClusterAddresses

ROOT = Path(__file__).parents[2]


def test_python_blocks_run_as_written(kappamq_cluster: ClusterAddresses, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 2
    script = tmp_path / "readme.py"
    script.write_text(f"NAMESERVER = {kappamq_cluster.nameserver!r}\n" + "\n".join(blocks))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert "one espresso" in done.stdout


@pytest.mark.parametrize("page", sorted(path.relative_to(ROOT) for path in ROOT.glob("docs/**/*.md")), ids=str)
def test_pages_name_only_files_that_exist(page: Path) -> None:
    text = (ROOT / page).read_text()
    for name in re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|md))`", text):
        places = (ROOT / name, ROOT / "src/kappamq" / name, ROOT / "docs" / name)
        assert any(place.exists() for place in places), f"{page} names {name}, which does not exist"
