"Which tests share a core: pytest-xdist hands the others out one by one, in this order."
import pytest

# Modules whose tests use what one of them has built: a site, a reproduced run, a wheel. They begin, and long single tests
# follow; the short ones fill what is left.
TOGETHER = ["test_imagenet", "test_site", "test_package", "test_statistics", "test_defaults"]
LONG = [*TOGETHER, "test_reproduce", "test_theory"]


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in a hook of the same name
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    module = lambda item: item.path.stem
    for item in items:
        if module(item) in TOGETHER:
            item.add_marker(pytest.mark.xdist_group(module(item)))
    items.sort(key=lambda item: LONG.index(module(item)) if module(item) in LONG else len(LONG))
