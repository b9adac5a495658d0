"""The site of these pages: `make docs`. Pages are Markdown, the reference comes from the docstrings.

Nothing is loaded from the network, neither to build the site nor to read it.
"""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

from sphinx.application import Sphinx

from penstock import __version__

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

project = "Penstock"
author = "the authors of Penstock"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["build"]

html_theme = "furo"
html_title = "Penstock"
html_copy_source = False
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["site.css"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
# Some blocks leave things out (`{...}`), or have CQL's own names.
suppress_warnings = ["misc.highlighting_failure"]

# Docstrings write names in single backticks.
default_role = "code"
autodoc_member_order = "groupwise"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True}
python_maximum_signature_line_length = 88


LINKS = (
    ("](examples)", "](examples.md)"),
    ("](docs/decisions)", "](decisions/index.md)"),
    ("](examples/", "](../examples/"),
    ("](docs/", "]("),
    ("](CHANGELOG.md", "](changelog.md"),
    ("](CONTRIBUTING.md", "](contributing.md"),
    ("](SECURITY.md", "](security.md"),
)
"""Links of pages at the top of the repository, and the same seen from here."""
AT_THE_TOP = {"index": "README.md", "contributing": "CONTRIBUTING.md", "security": "SECURITY.md"}


def page_at_the_top(app: Sphinx, page: str, text: list[str]) -> None:
    """What stands at the top of the repository is a page here; the first one also has the lists of index.md."""
    if name := AT_THE_TOP.get(page):
        written = (ROOT / name).read_text()
        for there, here in LINKS:
            written = written.replace(there, here)
        # The sections of the first page are few, and its code is wide.
        text[0] = f"---\nhide-toc: true\n---\n{written}\n{text[0]}" if page == "index" else written


def changes(app: Sphinx, page: str, text: list[str]) -> None:
    """The page of changes has those of the next release, from the files of changes/, before the others."""
    if page == "changelog" and any((ROOT / "changes").glob("*/*.md")):
        command = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "next", "--dir", str(ROOT)]
        draft = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        text[0] = f"# Changelog\n\n{draft}\n{text[0]}"


def messages(app: Sphinx, page: str, text: list[str]) -> None:
    """The page of troubles has all messages, from the source, behind those that come most often."""
    if page == "troubleshooting":
        text[0] += f"\n## All messages\n\n{import_module('messages').lines()}"


def setup(app: Sphinx) -> None:
    app.connect("source-read", page_at_the_top)
    app.connect("source-read", changes)
    app.connect("source-read", messages)
