"""A headless Chromium, driven by chromedriver over plain HTTP: what check.py needs of WebDriver, and no more.

Everything has an end: each request has a timeout, and chromedriver with all that it has started is one process group, which is
killed when the browser is closed, however that comes.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

from harness import Unavailable

PACKAGES = "apt-get install chromium chromium-driver"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars"]
REQUEST_SECONDS = 60


class BrowserFailed(Exception):
    """The browser did not do what it was asked for."""


def need(*names):
    """The first of these commands that is installed."""
    for name in names:
        path = shutil.which(name)
        if path:
            return path
    raise Unavailable(f"{names[0]} is not installed: {PACKAGES}")


class Browser:
    """One browser with one window; use it in a `with`."""

    def __init__(self):
        chromium, driver = need("chromium", "chromium-browser", "google-chrome"), need("chromedriver")
        self.profile = tempfile.mkdtemp(prefix="farshore-report-browser-")
        self.session = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        # A home of its own: nothing is read from or written to the user's.
        environment = dict(os.environ, HOME=self.profile, XDG_CONFIG_HOME=self.profile, XDG_CACHE_HOME=self.profile)
        self.driver = subprocess.Popen([driver, f"--port={self.port}"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL, start_new_session=True, env=environment, cwd=self.profile)
        try:
            self.wait_for_driver()
            options = {"binary": chromium, "args": [*FLAGS, f"--user-data-dir={self.profile}/data"]}
            wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
            self.session = self.request("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def wait_for_driver(self):
        """Until chromedriver answers."""
        deadline = time.monotonic() + 20
        while True:
            try:
                self.request("GET", "/status")
                return
            except BrowserFailed:
                if self.driver.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def request(self, method, path, body=None):
        """One WebDriver command."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"}, method=method)
        # No proxy of the environment between us and our own driver.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=REQUEST_SECONDS) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise BrowserFailed(f"{path}: {error.read().decode(errors='replace')[:300]}") from None
        except (OSError, ValueError) as error:
            raise BrowserFailed(f"{path}: {error}") from None

    def command(self, path, body):
        """A command of this session."""
        return self.request("POST", f"/session/{self.session}{path}", body)

    def devtools(self, name, **parameters):
        """A command of the DevTools protocol."""
        return self.command("/goog/cdp/execute", {"cmd": name, "params": parameters})

    def script(self, text, *arguments):
        """Runs a function's body in the page; returns what it returns."""
        return self.command("/execute/sync", {"script": text, "args": list(arguments)})

    def show(self, url, scheme, width):
        """Opens a page as somebody with this colour scheme and width of window sees it."""
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.command("/url", {"url": url})

    def log(self, kind):
        """What was logged since the last time: `browser` (the console), `performance` (network and more)."""
        return self.command("/se/log", {"type": kind})

    def picture(self):
        """The whole page as PNG, in base64."""
        size = self.devtools("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 16000), "scale": 1}
        return self.devtools("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]

    def close(self):
        """Ends the browser and all that it has started, and removes its files."""
        if self.session is not None:
            with contextlib.suppress(BrowserFailed):
                self.request("DELETE", f"/session/{self.session}")
            self.session = None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.driver.pid, signal.SIGKILL)
        self.driver.wait()
        shutil.rmtree(self.profile, ignore_errors=True)
