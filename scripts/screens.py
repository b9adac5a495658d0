"""Writes the pictures in docs/images: `python scripts/screens.py [cdc] [adtech] [replicate] [console] [live]`.

Those of the demos show the numbers of a real run in the middle of its load, and its verdict; it takes minutes. Those of
the console show its real server, with real topics, dead letters, states and events, and made-up pipelines and
connectors. `live` is the console's page of a running `penstock demo`. Pages need a Chromium
(tests/support/http/chromium.py). Run it after the demos or the page look different.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from copy import deepcopy
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from PIL import Image
from rich.console import Console

from penstock.local.services import down, up
from penstock_demo.stage import AUTO, Options, staged
from penstock_demo.view import Board, View, as_table

IMAGES = Path(__file__).parents[1] / "docs" / "images"
PACKAGES = {"cdc": "penstock_demo", "adtech": "penstock_demo.adtech", "replicate": "penstock_demo.replicate"}
SECONDS = 20.0
WIDTH = 92
FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""Fonts that rich loads from the network."""


class Remembering(View):
    """Remembers the numbers near the end of the load."""

    def __init__(self) -> None:
        super().__init__(Console(file=io.StringIO()), None)
        self.board = Board()

    def show(self, board: Board) -> None:
        if board.phase == "running":
            self.board = deepcopy(board)

    def say(self, line: str) -> None:
        print(line, flush=True)


class Wrapping(Console):
    """Breaks long lines, which a terminal would do."""

    def print(self, *objects: Any, soft_wrap: bool | None = None, **form: Any) -> None:
        super().print(*objects, **form)


def draw(name: str) -> None:
    """Run a demo, and write its picture."""
    package, shown = PACKAGES[name], Remembering()
    with tempfile.TemporaryDirectory() as folder:
        options = Options(Path(folder), SECONDS, AUTO, (), keep=False)
        demo: Any = import_module(f"{package}.run").Demo
        verdict = staged(lambda stack: demo(options, shown, stack).run(), keep=False)
    console = Wrapping(record=True, width=WIDTH, file=io.StringIO())
    console.print(as_table(shown.board))
    import_module(f"{package}.verdict").print_verdict(console, verdict)
    picture = FONTS.sub("", console.export_svg(title=f"penstock demo {name}"))
    IMAGES.mkdir(exist_ok=True)
    (IMAGES / f"demo-{name}.svg").write_text(picture)


def _import_support() -> None:
    support = Path(__file__).parents[1] / "tests/support"
    sys.path.extend(map(str, (support, *support.glob("*/"))))


def draw_console() -> None:
    """Serve a shop, and write a picture of each page of the console."""
    _import_support()
    from chromium import browser
    from console_server import console, shop

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        services = up(folder / "services", only=["kafka"])
        stack.callback(down, folder / "services")
        there = stack.enter_context(shop(folder, services.kafka, text="'cheap'", suffix=""))
        # The checkpoints are those of tests: without them the overview shows the shop alone.
        shown = [part for part in there.options if part not in ("--checkpoints", str(folder / "checkpoints"))]
        servers = {
            False: stack.enter_context(console(folder, *shown)),
            True: stack.enter_context(console(folder, *there.options)),
        }
        running = stack.enter_context(browser())
        for name, (address, scheme, sign) in PAGES.items():
            page = running.new_page(color_scheme=scheme, reduced_motion="reduce")
            page.set_viewport_size({"width": 1280, "height": HEIGHTS.get(name, 800)})
            page.goto(f"{servers[name == 'state'].url}/#/{address}")
            page.locator(sign).first.wait_for(timeout=60_000)
            # Rates are known from the second look on.
            page.wait_for_timeout(4000)
            save(page.screenshot(), f"console-{name}.png")
            page.close()


def save(screenshot: bytes, name: str) -> None:
    """Write a picture of a page in few colours, which takes a quarter of the bytes."""
    picture = Image.open(io.BytesIO(screenshot)).convert("RGB")
    picture.quantize(256, kmeans=3, dither=Image.Dither.NONE).save(IMAGES / name, optimize=True)


def draw_live() -> None:
    """Run the demo of the shop, write a picture of its console in the middle, and print the demo's result."""
    _import_support()
    from chromium import browser

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        command = [sys.executable, "-u", "-m", "penstock", "demo", "--root", str(folder), "--seconds", "60"]
        demo = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert demo.stdout
        lines = iter(demo.stdout)
        address = next(found[0] for line in lines if (found := re.search(r"http://127\.\S+", line)))
        page = stack.enter_context(browser()).new_page(reduced_motion="reduce")
        page.set_viewport_size({"width": 1280, "height": 960})
        page.goto(address)
        # The rates on the edges of the graph are those of rows that have reached their topics.
        page.locator(".edge text", has_text="/s").first.wait_for(timeout=120_000)
        page.wait_for_timeout(30_000)
        save(page.screenshot(), "console-demo.png")
        print("".join(lines))


PAGES: dict[str, tuple[str, Literal["dark", "light"], str]] = {
    "overview": ("", "light", ".edge text"),
    "pipeline": ("pipelines/orders", "dark", ".plot canvas"),
    "topics": ("topics?q=shop", "light", "tbody a"),
    "messages": ("topics/shop.orders?shown=3%2F499", "light", ".message pre"),
    "dead-letters": ("dead-letters/shop.orders.dead", "light", ".messages [data-row]"),
    "connectors": ("connectors/0/returns", "light", ".whole pre"),
    "state": ("state/tables%2Fcheckpoint%2Fgroups", "light", "tbody tr"),
    "ingest": ("ingest", "light", ".tile"),
}
"""The address of each page, its colours, and what stands there when it is drawn."""
HEIGHTS = {"overview": 1280, "pipeline": 960, "topics": 480, "state": 480, "ingest": 480}

if __name__ == "__main__":
    drawn = {name: partial(draw, name) for name in PACKAGES} | {"console": draw_console, "live": draw_live}
    for chosen in sys.argv[1:] or drawn:
        drawn[chosen]()
