"""What mkdocs calls while it builds the site: the reference pages are made from the code."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.refresh_docs import on_files, on_page_markdown  # noqa: F401 - mkdocs looks for them here
