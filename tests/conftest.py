"Which tests share a core: pytest-xdist hands the others out one by one, in this order."
import pytest

# Modules whose tests use what one of them has built: a site, a reproduced run, a wheel. Their long builds begin first.
TOGETHER = ["test_imagenet", "test_site", "test_package", "test_statistics", "test_defaults"]
LONG = ["test_reproduce", *TOGETHER]


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in a hook of the same name
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    module = lambda item: item.path.stem
    for item in items:
        if module(item) in TOGETHER:
            item.add_marker(pytest.mark.xdist_group(module(item)))
    items.sort(key=lambda item: LONG.index(module(item)) if module(item) in LONG else len(LONG))
