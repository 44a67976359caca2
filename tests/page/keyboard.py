"""The page without the mouse."""

import json

from browser import Browser, Failed
from objects import HOST
from tasks import TASKS, Hand, attempt

# Where Tab has not led to after so many stops, it does not lead.
MOST_STOPS = 200
# What has the focus: whether that can be seen, and whether it is what a selector means.
STOP = """(() => {{
    const it = document.activeElement;
    return [it === document.body || getComputedStyle(it).outlineStyle !== "none", it.matches({}), it.outerHTML.slice(0, 120)];
}})()"""


class Keyboard(Hand):
    """Hands at the keyboard alone, which must see the focus at every stop."""

    def click(self, selector: str) -> None:
        self.field(selector)
        self.browser.enter()

    def field(self, selector: str) -> None:
        for _ in range(MOST_STOPS):
            self.browser.tab()
            is_seen, is_there, element = self.browser.value(STOP.format(json.dumps(selector)))
            if not is_seen:
                raise Failed(f"the focus cannot be seen: {element}: give it an outline in :focus-visible")
            if is_there:
                return
        raise Failed(f"Tab does not lead to {selector}: make it a link, a button or a field")


def all_by_keyboard(browser: Browser, url: str) -> list[str]:
    """Does all tasks without the mouse."""
    wrong = []
    for task in [it for it in TASKS if it.way]:
        try:
            attempt(task, Keyboard(browser), url)
        except Failed as error:
            wrong.append(f"{task.question} {error}")
    return wrong


def by_keyboard(browser: Browser, url: str) -> list[str]:
    """Goes from the begin of the page to a route without the mouse, and sees the focus all the way."""
    browser.open(url)
    browser.tab()
    wrong = [] if browser.value("document.activeElement.className") == "skip" else ["the first stop does not skip the navigation"]
    stops = []
    for _ in range(14):
        stops.append(browser.value("document.activeElement.textContent.trim()"))
        if browser.value("getComputedStyle(document.activeElement).outlineStyle") == "none":
            wrong.append(f"the focus on {stops[-1]!r} cannot be seen")
        browser.tab()
    wrong += [f"{name} is no stop" for name in ("Listeners", "Routes", "Explain") if name not in stops]
    browser.key("/", 191, "/")
    if browser.value("document.activeElement.id") != "query":
        wrong.append("/ does not go to the search")
    browser.type(f"http://{HOST}/cart")
    browser.enter()
    browser.until("document.activeElement.tagName === 'H1' && document.activeElement.innerText === 'A rule takes the request'", "the focus is on the new heading")
    browser.until("document.querySelector('#announcement').textContent === 'A rule takes the request'", "screen readers hear it")
    for _ in range(20):
        browser.tab()
        if browser.value("document.activeElement.textContent") == "HTTPRoute default/web":
            break
    else:
        return [*wrong, "the route is no stop"]
    browser.enter()
    browser.until("document.querySelector('h1').innerText === 'HTTPRoute default/web'")
    return wrong
