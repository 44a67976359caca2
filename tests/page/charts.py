"""The cards of the last minutes, with what the proxy has and with what it may have."""

import json
import re
import time
from collections.abc import Callable

from browser import TIMEOUT_SECONDS, Browser

# A document `history`, and what its cards show: the words and the line.
HISTORY = {
    "stepSeconds": 5, "maxSteps": 60,
    "requestsPerSecond": [1, None, 40, 12], "failedPerSecond": [0, 0, 0, 0], "p99Seconds": [None] * 4, "connections": [1, 2, 3, 4],
}  # fmt: skip
CARDS = [
    ["Requests per second, last 20 seconds: now 12.0, highest 40.0", "M56 19.5h0M58 0L59 14"],
    ["5xx per second, last 20 seconds: now 0.0, highest 0.0", "M56 20L57 20L58 20L59 20"],
    ["p99 of durations, last 20 seconds: now none, highest none", ""],
    ["Open connections, last 20 seconds: now 4, highest 4", "M56 15L57 10L58 5L59 0"],
]


def charts(browser: Browser, url: str, request: Callable[[], object]) -> list[str]:
    """Cards have the last minutes in words and as a line, also where values are missing."""
    label = "document.querySelector('main .cards svg')?.getAttribute('aria-label') ?? ''"
    browser.open(url)
    end = time.monotonic() + TIMEOUT_SECONDS
    expected = r"Requests per second, last \d+ (seconds|minutes): now [\d.]+, highest (0\.[1-9]|[1-9]\d*\.\d)"
    while not re.fullmatch(expected, browser.value(label)):
        request()
        if time.monotonic() > end:
            return [f"the card of requests is {browser.value(label)!r}"]
    shown = "import('/charts.js').then(({{ cards }}) => cards({})).then(([heading, content]) => {})"
    parts = "[...content.querySelectorAll('svg')].map((it) => [it.getAttribute('aria-label'), it.querySelector('path').getAttribute('d')])"
    cards = browser.value(shown.format(json.dumps(HISTORY), parts))
    wrong = [f"a card is {card}, not {expected}" for card, expected in zip(cards, CARDS, strict=True) if card != expected]
    start = {name: [] if isinstance(value, list) else value for name, value in HISTORY.items()}
    text = browser.value(shown.format(json.dumps(start), "content.textContent"))
    return wrong + ([] if text == "The first values come 5 seconds after the start." else [f"right after a start it says {text!r}"])
