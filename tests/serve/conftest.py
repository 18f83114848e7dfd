"""Options for the servers of farshore-serve, and their watchdog."""

import os
import shlex
import threading

import pytest
import servers


def pytest_addoption(parser):
    group = parser.getgroup("servers")
    group.addoption("--serve", help="path of farshore-serve")
    group.addoption("--prefix", type=shlex.split, default=[], help="a command that starts the servers")
    group.addoption("--memory", help="run the servers under farshore, with so much memory")
    group.addoption("--killed-seconds", type=float, default=12, help="how long a service works while its memory nodes are killed (default 12)")


@pytest.fixture(autouse=True, scope="session")
def options(pytestconfig):
    """What the servers are started by."""
    option, ours = pytestconfig.option, servers.OPTIONS
    ours.serve, ours.prefix, ours.memory = servers.find_serve(option.serve), option.prefix, option.memory
    if option.memory:
        swap = f"dir:{os.environ.get('FARSHORE_SWAP_DIR', '/var/tmp')}"
        ours.prefix = [servers.beside("farshore"), "run", "--memory", option.memory, "--threshold", "4K", "--swap", swap, "--"]


@pytest.fixture(autouse=True)
def watchdog(request):
    """A test that hangs ends everything, with a picture of it on the screen."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def late():
        capture.suspend_global_capture(in_=True)
        servers.too_late(request.node.name)

    timer = threading.Timer(servers.TEST_SECONDS + request.config.option.killed_seconds, late)
    timer.daemon = True
    timer.start()
    yield
    timer.cancel()
