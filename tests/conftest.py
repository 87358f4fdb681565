"Which tests share a core: pytest-xdist hands the others out one by one, in this order."
from pathlib import Path

import pytest

# Modules whose tests use what one of them has built: a site, a reproduced run, a wheel. They begin, and long single tests
# follow; the short ones fill what is left.
TOGETHER = ["test_imagenet", "test_site", "test_live", "test_package", "test_statistics", "test_defaults", "test_command"]
LONG = [*TOGETHER, "test_reproduce", "test_theory"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    module = lambda item: item.path.stem
    items.sort(key=lambda item: LONG.index(module(item)) if module(item) in LONG else len(LONG))


def share_of(nodeid: str) -> str:
    "What is handed to one core as a whole: a module of `TOGETHER`, or a single test."
    file = nodeid.split("::")[0]
    return file if Path(file).stem in TOGETHER else nodeid


@pytest.hookimpl(optionalhook=True)  # without pytest-xdist there is no such hook
def pytest_xdist_make_scheduler(config, log):
    # xdist 3.8 writes the name of a mark's group where pytest 9.2 no longer looks for it: modules are told apart here
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return share_of(nodeid)

    return Together(config, log)
