"""Hooks of mkdocs: documents at the root of the project become pages, and links to other files lead to copies of them.

So links are written once, as they work in a clone.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "CONTRIBUTING.md": "contributing.md",
    "MIGRATING.md": "migrating.md",
    "SECURITY.md": "security.md",
}
LINK = re.compile(r"\[([^\]]*)\]\(<?([^)\s>]+)>?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents at the root."""
    for name, page in PAGES.items():
        if (ROOT / name).exists():
            files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links, outside of code blocks, from places in the project to places in the site."""
    here = page.file.src_uri
    source = next((name for name, uri in PAGES.items() if uri == here), f"docs/{here}")

    def rewritten(found: re.Match[str]) -> str:
        text, target = found.groups()
        name, hash_sign, anchor = target.partition("#")
        if not name or re.match(r"[a-z][a-z+.-]*:", target):
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), name))
        if path in PAGES:
            place = PAGES[path]
        elif path.startswith("docs/"):
            place = path.removeprefix("docs/")
        elif (ROOT / path).is_file():
            # A page that is served must not be taken for one that is rendered, and a hidden file is not copied.
            place = f"files/{path.lstrip('.')}.txt"
            if files.get_file_from_path(place) is None:
                files.append(File.generated(config, place, content=(ROOT / path).read_text()))
        else:
            return text  # a folder
        return f"[{text}]({posixpath.relpath(place, posixpath.dirname(here) or '.')}{hash_sign}{anchor})"

    parts = re.split(r"(^[ ]*```.*?^[ ]*```[ ]*$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.lstrip().startswith("```") else LINK.sub(rewritten, part) for part in parts)
