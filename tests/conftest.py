"Which tests share a process: pytest-xdist hands the others out one by one, in this order."
import re
from pathlib import Path

import pytest

# Modules whose tests use what one of them has built: a site, a reproduced run, a wheel. The longest begins, and long single
# tests follow; the short ones fill what is left.
TOGETHER = ["test_site", "test_reproduce", "test_imagenet", "test_live", "test_package", "test_command", "test_words", "test_statistics", "test_defaults"]
ALONE = r"::test_(where_quarto|small_site|faults_stop|the_kernel_is|stopped_it|a_folder_has|a_name_with_a_slash|papermill_runs)"  # of these, what builds for itself
LONG = [*TOGETHER, "test_theory"]


def share_of(nodeid: str) -> str:
    "What is handed to one process as a whole: a module of `TOGETHER`, or a single test."
    file = nodeid.split("::")[0]
    return file if Path(file).stem in TOGETHER and not re.search(ALONE, nodeid) else nodeid


def rank(item: pytest.Item) -> tuple[bool, int]:
    "Where a test comes: what runs as a whole before what runs alone, and both as in `LONG`."
    module = item.path.stem
    return share_of(item.nodeid) == item.nodeid, LONG.index(module) if module in LONG else len(LONG)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=rank)


@pytest.hookimpl(optionalhook=True)  # without pytest-xdist there is no such hook
def pytest_xdist_make_scheduler(config, log):
    # xdist 3.8 writes the name of a mark's group where pytest 9.2 no longer looks for it: modules are told apart here
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return share_of(nodeid)

    return Together(config, log)
