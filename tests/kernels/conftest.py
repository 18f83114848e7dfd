"""Which tests of test_kernel.py a kernel gets, and how large the machines of test_vm.py are."""


def pytest_addoption(parser):
    parser.getgroup("kernels").addoption("--refused", action="store_true", help="the kernel is too old: what Farshore says then")
    parser.getgroup("kernels").addoption("--large", action="store_true", help="large machines, too, which take minutes")
    parser.getgroup("kernels").addoption("--measure", type=int, default=0, metavar="N", help="measure prefetching in a guest's addresses, N times each way (test_introspect.py)")


def pytest_collection_modifyitems(config, items):
    refused, large = config.getoption("--refused"), config.getoption("--large")
    left_out = [item for item in items if (item.get_closest_marker("too_old") is not None) != refused or item.get_closest_marker("large") and not large
                or (item.get_closest_marker("measured") is not None) != bool(config.getoption("--measure"))]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
