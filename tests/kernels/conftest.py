"""Which tests of test_kernel.py a kernel gets."""


def pytest_addoption(parser):
    parser.getgroup("kernels").addoption("--refused", action="store_true", help="the kernel is too old: what Farshore says then")


def pytest_collection_modifyitems(config, items):
    refused = config.getoption("--refused")
    left_out = [item for item in items if (item.get_closest_marker("too_old") is not None) != refused]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
