"""A headless Chromium that is driven over the DevTools protocol, through pipes: no port, and no other library."""

import json
import os
import queue
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Self

TIMEOUT_SECONDS = 30
FLAGS = [
    "--headless=new", "--remote-debugging-pipe", "--no-first-run", "--no-default-browser-check", "--disable-gpu", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-extensions", "--disable-sync", "--no-proxy-server", "--hide-scrollbars",
    "--force-color-profile=srgb", "--disable-lcd-text", "--font-render-hinting=none", "--window-size=1280,900",
]  # fmt: skip


def program() -> str | None:
    """The path of Chromium, if it is installed."""
    return next((path for path in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if path), None)


class Failed(Exception):
    """The browser does not do what it is asked for."""


class Browser:
    """A browser with one tab. It keeps the requests that the tab makes, and what the tab complains about."""

    def __init__(self, folder: Path, *flags: str):
        inward, outward = os.pipe(), os.pipe()
        # A sandbox needs rights that containers often do not have. Only pages of this test are opened.
        command = [program(), *FLAGS, *flags, "--no-sandbox", f"--user-data-dir={folder}", "about:blank"]
        # DevTools reads from descriptor 3 and writes to descriptor 4.
        redirect = f'exec "$@" 3<&{inward[0]} 4>&{outward[1]}'
        self.process = subprocess.Popen(
            ["bash", "-c", redirect, "bash", *command], pass_fds=(inward[0], outward[1]), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
        )
        os.close(inward[0])
        os.close(outward[1])
        self.output, self.input = os.fdopen(inward[1], "wb", buffering=0), os.fdopen(outward[0], "rb")
        self.answers: dict[int, queue.Queue] = {}
        self.number, self.session = 0, None
        self.requests: list[str] = []
        self.complaints: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error) -> None:
        self.stop()

    def _read(self) -> None:
        data = b""
        while more := self.input.read1(1 << 16):
            data += more
            *messages, data = data.split(b"\0")
            for message in messages:
                self._take(json.loads(message))
        for answers in list(self.answers.values()):
            answers.put({"error": {"message": "the browser has ended"}})

    def _take(self, message: dict) -> None:
        if "id" in message:
            self.answers[message["id"]].put(message)
            return
        method, details = message["method"], message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(details["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(details["exceptionDetails"]))
        elif method == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{details['entry']['text']} {details['entry'].get('url', '')}")

    def send(self, method: str, **parameters) -> dict:
        """Sends a command and returns its result."""
        self.number += 1
        answers = self.answers[self.number] = queue.Queue()
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        self.output.write(json.dumps(message).encode() + b"\0")
        try:
            answer = answers.get(timeout=TIMEOUT_SECONDS)
        except queue.Empty:
            raise Failed(f"{method}: no answer within {TIMEOUT_SECONDS} s") from None
        if "error" in answer:
            raise Failed(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def value(self, expression: str):
        """Evaluates an expression in the page; a promise is waited for."""
        result = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise Failed(f"{expression[:200]}: {json.dumps(result['exceptionDetails'])[:600]}")
        return result["result"].get("value")

    def until(self, expression: str, what: str | None = None) -> None:
        """Waits until an expression is true."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while not self.value(expression):
            if time.monotonic() > end:
                raise Failed(f"it is not so: {what or expression}; the page is\n{self.text()[:3000]}")
            time.sleep(0.02)

    def open(self, url: str) -> None:
        """Opens a page anew, and waits until it shows its content."""
        self.send("Page.navigate", url="about:blank")
        self.until("location.href === 'about:blank'")
        self.send("Page.navigate", url=url)
        self.until("location.href !== 'about:blank' && performance.getEntriesByName('shown').length > 0")

    def text(self) -> str:
        return self.value("document.body ? document.body.innerText : ''")

    def click(self, selector: str) -> None:
        """Clicks with the mouse on the first element of a selector that can be seen."""
        place = f"""(() => {{
            const element = [...document.querySelectorAll({json.dumps(selector)})].find((it) => it.checkVisibility());
            if (!element) return null;
            element.scrollIntoView({{block: "center"}});
            const box = element.getClientRects()[0];
            return [box.x + box.width / 2, box.y + box.height / 2];
        }})()"""
        self.until(f"{place} !== null", f"{selector} can be seen")
        x, y = self.value(place)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def key(self, key: str, code: int, text: str = "", modifiers: int = 0) -> None:
        common = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        self.send("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **common)
        self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    def tab(self) -> None:
        self.key("Tab", 9)

    def enter(self) -> None:
        self.key("Enter", 13, "\r")

    def type(self, text: str) -> None:
        self.send("Input.insertText", text=text)

    def look(self, width: int, height: int, scheme: str) -> None:
        """Sets the size of the window and the color scheme."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.until(f"innerWidth === {width} && matchMedia('(prefers-color-scheme: {scheme})').matches")

    def stop(self) -> None:
        try:
            self.session = None
            self.send("Browser.close")
        except (Failed, OSError):
            self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        self.output.close()
