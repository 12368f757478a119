"""Sphinx configuration."""

import re
import shutil
from pathlib import Path

from hsbi import __version__

project = "hsbi"
author = "The hsbi authors"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["deflist", "dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]

autodoc_typehints = "description"
autodoc_member_order = "bysource"
autoclass_content = "both"
default_role = "code"  # docstrings write `name` for code, as Markdown does
napoleon_google_docstring = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = f"hsbi {__version__}"

DOCS = Path(__file__).parent
EXAMPLES = DOCS.parent / "examples"
GENERATED = DOCS / "generated"


def render_cells(source: str) -> str:
    """Turn a script in percent cells into MyST Markdown."""
    parts = []
    for cell in re.split(r"^# %%", source, flags=re.MULTILINE)[1:]:
        kind, _, body = cell.partition("\n")
        if "[markdown]" in kind:
            parts.append(re.sub(r"^# ?", "", body.strip(), flags=re.MULTILINE))
        else:
            parts.append(f"```python\n{body.strip()}\n```")
    return "\n\n".join(parts) + "\n"


def escape_shapes(app, what, name, obj, options, lines):
    """Keep shapes in docstrings, such as [num_draws, *shape], from being read as emphasis."""
    lines[:] = [re.sub(r"(?<=, )\*(?=\w[\w ]*[\],])", r"\\*", line) for line in lines]


def setup(app):
    """Run after napoleon, whose priority is 500."""
    app.connect("autodoc-process-docstring", escape_shapes, priority=900)


# Pages must exist before Sphinx looks for its sources, so they are written while the configuration is read.
shutil.rmtree(GENERATED, ignore_errors=True)
GENERATED.mkdir()
for script in sorted(EXAMPLES.glob("[0-9][0-9]_*.py")):
    (GENERATED / f"{script.stem}.md").write_text(render_cells(script.read_text()))
