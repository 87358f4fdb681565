"""The tests of what someone needs who calibrates: without a browser, data sets, timm or a network that is trained.

They run on every system and Python with `pip install ".[sklearn]" pytest hypothesis`; `python tests/quick.py` runs them."""
import sys
from pathlib import Path

FILES = ["test_golden", "test_warnings", "test_properties", "test_checks", "test_watch", "test_far_away"]

if __name__ == "__main__":
    import pytest

    here = Path(__file__).parent
    sys.exit(pytest.main(["-q", "-rs", *(str(here / f"{name}.py") for name in FILES), *sys.argv[1:]]))
