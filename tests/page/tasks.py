"""What operators ask at night, each answered on the page with at most three clicks. Typing, and Enter at its end, is no click."""

from dataclasses import dataclass

from browser import Browser
from objects import HOST

MOST = 3


@dataclass
class Hand:
    """A hand at the mouse and the keyboard, which counts clicks."""

    browser: Browser
    clicks: int = 0

    def click(self, selector: str) -> None:
        self.clicks += 1
        self.browser.click(selector)

    def field(self, selector: str) -> None:
        """Goes to a field, whose text the next one replaces."""
        self.click(selector)
        self.browser.value(f"document.querySelector('{selector}').select()")

    def part(self, name: str) -> None:
        """Goes to a part of the page."""
        self.click(f'header nav a[href="#{name}"]')
        self.browser.until(f"document.querySelector('main').dataset.shows === '#{name}'")

    def write(self, selector: str, text: str) -> None:
        self.field(selector)
        self.browser.type(text)
        self.browser.enter()
        # The former view stays until the new one has its documents: the next click must not meet it.
        self.browser.until("document.querySelector('main').dataset.shows === location.hash")

    def reads(self, text: str) -> None:
        """Waits until the content has a text."""
        self.browser.until(f"document.querySelector('main').innerText.includes({text!r})")


@dataclass
class Task:
    """A question, the way to its answer, and texts that the answer has."""

    question: str
    way: list[tuple[str, ...]]
    answer: list[str]


def row(text: str) -> str:
    """The link to an object."""
    return f'main a[href*="{text}"]'


SEARCH = "#query"
TASKS = [
    Task("Which route takes a URL?", [("write", SEARCH, f"http://{HOST}/cart/7")], ["Result: HTTPRoute default/web, rule 0"]),
    Task("Why does no route take a URL?", [("write", SEARCH, "http://other.example.com/")], ["No rule takes the request", "404"]),
    Task("Which route gets no requests, because another one shadows it?", [("write", SEARCH, f"http://{HOST}/cart")], ["HTTPRoute default/web-copy", "matches too, but has lower precedence"]),
    Task("Which certificate has expired?", [], ["Secret default/old", "the certificate has expired at"]),
    Task("Which certificate expires next?", [("part", "certificates")], ["Secret default/soon", "in 9 days"]),
    Task("Which endpoint is ejected, and of which backend?", [("part", "backends"), ("write", "#filter", "ejected")], ["Service default/app:80", "ejected: refuses connections"]),
    Task("Which listener gets requests, and which errors?", [("part", "listeners")], ["Gateway default/edge listener http", "Requests/s", "5xx/s"]),
    Task("Which route fails?", [], ["HTTPRoute default/broken rule 0", "were 5xx"]),
    Task("What does the failing route send its requests to?", [("click", row("name=HTTPRoute+default%2Fbroken"))], ["Service default/broken:80", "5xx"]),
    Task("What has refused an object, and why?", [("click", row("name=HTTPRoute+default%2Fforeign"))], ["RefNotPermitted", "no ReferenceGrant in namespace data permits it", "nothing gets here"]),
    Task("What does a missing ReferenceGrant do to requests now, and what is to be done?", [], ["requests that need it get status 500", "add one there with from"]),
    Task("Which port is not bound?", [], ["listener taken", "PortUnavailable"]),
    Task("Which file cannot be read, and where?", [], ["typo.yaml", "matchs"]),
    Task("Which backend has no endpoint?", [], ["Service default/empty:80", "has no ready endpoint"]),
    Task("Where do the requests of a route go, by weight?", [("part", "routes"), ("click", row("name=HTTPRoute+default%2Fweb"))], ["90 %", "10 %", "Service default/next:80"]),
    Task("How many connections of a TCPRoute are open, and where do they go?", [("part", "routes"), ("click", row("name=TCPRoute+default%2Fdatabase"))], ["connections are open", "Service default/next:80 for TCP"]),
    Task("Which policies apply to a route?", [("write", SEARCH, "private"), ("click", row("name=HTTPRoute+default%2Fprivate"))], ["Credentials", "AccessPolicy default/staff"]),
    Task("Which policy permits more than another one?", [("part", "policies"), ("write", "#filter", "Loosens")], ["AccessPolicy default/anyone", "LoosensInherited"]),
    Task("Which limit refuses requests?", [("part", "limits")], ["hourly", "RateLimitPolicy default/visitors"]),
    Task("Is it one client that uses up a limit?", [("part", "limits")], ["hourly", "100 %"]),
    Task("Which backend uses TLS, and by which policy?", [("part", "backends")], ["by BackendTLSPolicy default/secure"]),
    Task("Which configuration is in service, and since when?", [], ["generation 2", ", since "]),
]  # fmt: skip


def attempt(task: Task, hand: Hand, url: str) -> list[str]:
    """Does a task on a page that has just been opened. Returns what is wrong with it."""
    hand.browser.open(url)
    for name, *arguments in task.way:
        getattr(hand, name)(*arguments)
    for text in task.answer:
        hand.reads(text)
    return [f"it takes {hand.clicks} clicks"] if hand.clicks > MOST else []
