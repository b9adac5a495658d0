"""A page of a browser that must say nothing on its console, ask no other host, and be accessible."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Literal
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, ViewportSize, expect
from waiting import patience

AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text()
WIDE, NARROW = 1280, 390
HEIGHT = 900

expect.set_options(timeout=patience(20) * 1000)  # milliseconds, of each `expect` in this process


@dataclass
class Watched:
    """What a page did that it must not do; `quiet` is False while its server is away."""

    page: Page
    host: str
    said: list[str] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)
    quiet: bool = True

    def add_message(self, message: ConsoleMessage) -> None:
        if self.quiet and message.type in ("error", "warning"):
            self.said.append(message.text)

    def add_request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob") and parts.netloc != self.host:
            self.strangers.append(request.url)

    def require_good(self) -> None:
        assert not self.said, self.said
        assert not self.strangers, self.strangers

    def require_text_only(self) -> None:
        """Nothing of what the page shows was read as markup."""
        assert self.page.title() != "hacked"
        assert self.page.locator("#app script, #app img[src=x]").count() == 0

    def require_accessible(self) -> None:
        """No rule of axe (WCAG 2 A and AA, best practices) is broken."""
        self.page.evaluate(f"typeof axe === 'object' || (() => {{ {AXE} }})()")
        found: dict[str, Any] = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        broken = [
            (one["id"], one["help"], [node["html"][:200] for node in one["nodes"]]) for one in found["violations"]
        ]
        assert not broken, broken
        self.require_fitting()

    def require_fitting(self) -> None:
        """Nothing is wider than the window."""
        assert self.page.evaluate("document.documentElement.scrollWidth <= innerWidth")

    def _become(self, scheme: Literal["light", "dark"], width: int) -> None:
        self.page.emulate_media(color_scheme=scheme)
        self.page.set_viewport_size(ViewportSize(width=width, height=HEIGHT))

    def require_good_in_each_form(self) -> None:
        """Accessible in light and dark, wide and narrow; two of the four forms have all colours and all widths."""
        self._become("light", WIDE)
        self.require_accessible()
        self._become("dark", WIDE)
        self.require_fitting()
        self._become("dark", NARROW)
        self.require_accessible()
        self._become("light", NARROW)
        self.require_fitting()
        self.require_text_only()
        self.require_good()


@contextmanager
def watched(browser: Browser, url: str) -> Iterator[Watched]:
    """A new page in a context of its own, which has not been anywhere."""
    size = ViewportSize(width=WIDE, height=HEIGHT)
    with browser.new_context(viewport=size, reduced_motion="reduce", accept_downloads=True) as context:
        page = context.new_page()
        page.set_default_timeout(15_000)
        result = Watched(page, urlsplit(url).netloc)
        page.on("console", result.add_message)
        page.on("pageerror", lambda error: result.said.append(str(error)))
        page.on("request", result.add_request)
        yield result
