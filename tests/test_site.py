"""The site that `make docs` builds: without warnings, with every public name, and readable without a network."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import chromium
import pytest

import penstock

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
LOADED = {"script": "src", "img": "src", "source": "src", "iframe": "src", "link": "href", "object": "data"}
"""The elements that a browser loads by themselves, and their attribute with the address."""
NOT_LOADED = {"canonical", "author", "next", "prev", "index", "search"}
PUBLIC = [f"penstock.{name}" for name in dir(penstock) if not name.startswith("_")]
PACKAGES = ["penstock", "penstock.wire", *(name for name in PUBLIC if find_spec(name))]


class Loads(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in LOADED and given.get("rel") not in NOT_LOADED and (address := given.get(LOADED[tag])):
            self.addresses.append(address)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site; a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    options = ("--quiet", "--fail-on-warning", "--keep-going", "--builder", "html", "--doctree-dir", folder / "trees")
    command = [sys.executable, "-m", "sphinx", *options, ROOT / "docs", folder / "html"]
    ran = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return folder / "html"


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    anchors = {
        anchor for page in site.glob("api/*.html") for anchor in re.findall(r'id="(penstock[\w.]*)"', page.read_text())
    }
    for package in PACKAGES:
        module = import_module(package)
        for name in getattr(module, "__all__", ()):
            if callable(getattr(module, name)):
                # `Table` is in `penstock.kafka`, too.
                assert {f"{package}.{name}", f"penstock.table.{name}"} & anchors, f"{package}.{name}"


def test_nothing_is_loaded_from_the_network(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text())
        assert loads.addresses
        assert [address for address in loads.addresses if re.match("(?:https?:)?//", address)] == []
    for sheet in site.rglob("*.css"):
        assert not re.search(r"""(?:url\(|@import)\s*["']?(?:https?:)?//""", sheet.read_text())


def test_the_search_knows_the_words_of_a_message(site: Path) -> None:
    words = (site / "searchindex.js").read_text()
    assert "troubleshooting" in words
    assert "misspelt" in words
    # Of the list that is made from the source.
    assert "reassignment" in words


CUT = """() => [document.documentElement, ...document.querySelectorAll('.content *')]
    .filter(one => one.clientWidth && one.scrollWidth > one.clientWidth + 1)
    .filter(one => getComputedStyle(one).overflowX != 'visible')
    .map(one => one.textContent.slice(0, 60))"""
"""The parts of a page that are wider than what is shown of them."""


@pytest.mark.parametrize("width", [1280, 1600])
def test_the_first_page_shows_its_diagram_and_its_code_whole(site: Path, width: int) -> None:
    with chromium.browser() as browser:
        page = browser.new_page(viewport={"width": width, "height": 800})
        page.goto((site / "index.html").as_uri())
        assert page.locator(".content pre").count() >= 4
        assert page.evaluate(CUT) == []
