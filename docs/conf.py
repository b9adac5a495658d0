"""The site of these pages: `make docs`. Pages are Markdown, the reference comes from the docstrings.

Nothing is loaded from the network, neither to build the site nor to read it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from sphinx.application import Sphinx

from penstock import __version__

ROOT = Path(__file__).parents[1]

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


def first_page(app: Sphinx, page: str, text: list[str]) -> None:
    """The first page is the README, with its links seen from here, before the lists of pages in index.md."""
    if page == "index":
        readme = (ROOT / "README.md").read_text()
        for there, here in (
            ("](examples)", "](examples.md)"),
            ("](docs/decisions)", "](decisions/index.md)"),
            ("](examples/", "](../examples/"),
            ("](docs/", "]("),
        ):
            readme = readme.replace(there, here)
        # Its sections are few, and its code is wide.
        text[0] = f"---\nhide-toc: true\n---\n{readme}\n{text[0]}"


def changes(app: Sphinx, page: str, text: list[str]) -> None:
    """The page of changes has those of the next release, from the files of changes/, before the others."""
    if page == "changelog":
        command = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", __version__, "--dir", str(ROOT)]
        draft = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        text[0] = f"# Changelog\n\n{draft}\n{text[0]}"


def setup(app: Sphinx) -> None:
    app.connect("source-read", first_page)
    app.connect("source-read", changes)
