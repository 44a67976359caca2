"""The views of the page by axe-core, and whether they fit into the window."""

import shutil
import subprocess
from pathlib import Path

from browser import Browser

HERE = Path(__file__).resolve().parent
TOOLS = HERE.parents[1] / "target" / "tools" / "page"
# With the rules that axe-core judges by: schemes differ in nothing but colors. Fewer rules have something to look at only where the content is not there.
RULES = {"light": ("", 10), "dark": ("runOnly: ['cat.color'],", 1)}
# Windows of phones, of tablets, on which rows are cards, the least with tables, and of desks.
WIDTHS = [320, 768, 961, 1280]
# Of the others only what does not fit is judged.
AXE_WIDTHS = [320, 1280]
RUN = """axe.run(document, { RULES resultTypes: ["violations"] }).then(({ passes, violations }) => [passes.length, violations.flatMap(({ id, nodes }) =>
    nodes.map((node) => [id, `${node.target.flat().join(" ")} ${node.html.slice(0, 120)}`, node.failureSummary]))])"""
# How far the content is beyond the window, and the innermost of the elements that are the farthest.
BEYOND = """(() => {
    const over = document.documentElement.scrollWidth - innerWidth;
    const right = (it) => it.getBoundingClientRect().right;
    const farthest = [...document.body.querySelectorAll("*")].reduce((one, other) => (right(other) >= right(one) ? other : one));
    return over > 0 ? [over, farthest.outerHTML.slice(0, 120)] : null;
})()"""


def axe_core() -> str:
    """The script of axe-core, of the version and with the content that the lock file names."""
    TOOLS.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name, TOOLS / name)
    subprocess.run(["npm", "ci", "--loglevel=error", "--prefer-offline", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=TOOLS, check=True, stdout=subprocess.DEVNULL)
    return (TOOLS / "node_modules" / "axe-core" / "axe.min.js").read_text()


class Findings:
    """What is wrong, with the first view that has it: parts that all views share are named once."""

    def __init__(self):
        self.places: dict[tuple[str, ...], list[str]] = {}

    def add(self, place: str, rule: str, element: str, fix: str) -> None:
        self.places.setdefault((rule, element, fix), []).append(place)

    def lines(self) -> list[str]:
        def more(places: list[str]) -> str:
            return f" and {len(places) - 1} more" if len(places) > 1 else ""

        return [f"{places[0]}{more(places)}: {': '.join(finding)}" for finding, places in self.places.items()]


def accessible(browser: Browser, url: str, views: list[str], axe: str) -> list[str]:
    """Looks at views in all widths, light and dark. Returns a line per finding: the view, the rule, the element and the fix."""
    findings = Findings()
    for view in views:
        browser.open(url + view)
        browser.value(axe)
        for width in WIDTHS:
            browser.look(width, 900, "light")
            place = f"{view or '#problems'} at {width} px"
            if beyond := browser.value(BEYOND):
                findings.add(place, "fits", beyond[1], f"make it {beyond[0]} px narrower, or let it wrap")
            for scheme in RULES if width in AXE_WIDTHS else ():
                browser.look(width, 900, scheme)
                judge(browser, f"{place}, {scheme}", scheme, findings)
    browser.look(1280, 900, "light")
    return findings.lines()


def judge(browser: Browser, place: str, scheme: str, findings: Findings) -> None:
    """Adds what axe-core finds."""
    rules, least = RULES[scheme]
    passed, violations = browser.value(RUN.replace("RULES", rules))
    if passed < least:
        findings.add(place, "axe", "main", f"show the content: only {passed} rules have looked at something")
    for rule, element, fix in violations:
        findings.add(place, rule, element, fix)
