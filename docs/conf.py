"""The documentation as a site: `make docs`. Links are checked; the pages of commands are made of their parsers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fusiond import __version__, cli

project = "fusiond"
release = version = __version__
copyright = "the fusiond developers"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"fusiond {release}"
html_static_path = ["_static"]
html_css_files = ["front.css"]
nitpicky = False  # names in docstrings are code, not references; links of pages are checked all the same
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
COMMANDS = Path(__file__).parent / "reference" / "commands.md"


def write_commands(app: Any) -> None:
    """docs/reference/commands.md, of the parsers' own help."""
    parts = ["# Commands\n", "Made of the parsers when this site was built; `fusiond help COMMAND` prints the same.\n"]
    for name, summary in cli.COMMANDS.items():
        parser = cli.command_of(name)[1]
        text = parser.format_help().rstrip()
        parts.append(f"## fusiond {name}\n\n{summary[:1].upper()}{summary[1:]}.\n\n```text\n{text}\n```\n")
    COMMANDS.write_text("\n".join(parts), encoding="utf-8")


def setup(app: Any) -> None:
    app.connect("builder-inited", write_commands)
