"""User agents in words."""

from __future__ import annotations

from typing import NamedTuple

from app.web.languages import gettext

# The first that a user agent contains: later ones are also in those of earlier ones.
BROWSERS = {
    "Edg": "Edge",
    "OPR/": "Opera",
    "SamsungBrowser/": "Samsung Internet",
    "FxiOS/": "Firefox",
    "Firefox/": "Firefox",
    "CriOS/": "Chrome",
    "HeadlessChrome/": "Chrome",
    "Chrome/": "Chrome",
    "Safari/": "Safari",
}
SYSTEMS = {
    "Android": "Android",
    "iPhone": "iOS",
    "iPad": "iPadOS",
    "Windows": "Windows",
    "CrOS": "ChromeOS",
    "Mac OS X": "macOS",
    "Linux": "Linux",
}
MAX_PROGRAM_LENGTH = 30


class Family(NamedTuple):
    """A program without its version, and the system that it runs on; empty if unknown."""

    browser: str
    system: str
    program: str


def family(user_agent: str | None) -> Family:
    """The family of a user agent."""
    text = user_agent or ""
    browser = next((name for part, name in BROWSERS.items() if part in text), "")
    system = next((name for part, name in SYSTEMS.items() if part in text), "")
    return Family(browser, system, text.partition("/")[0].strip()[:MAX_PROGRAM_LENGTH])


def describe(user_agent: str | None) -> str:
    """The browser and system of a user agent, or the program's name."""
    browser, system, program = family(user_agent)
    if browser and system:
        return gettext("%(browser)s on %(system)s", browser=browser, system=system)
    return browser or program or gettext("unknown program")
