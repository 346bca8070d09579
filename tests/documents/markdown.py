"""What a reader of the documents can try: fenced blocks, links and headings of a Markdown file.

How documents mark what the tests are to know:

    ```python       runs, with the names that the blocks before it have made
    ```text         right after a block that runs: what it prints; ... stands for anything
    ```sh           lines with linattn-fast run, in the folder of the blocks before them
    # needs NAME    in a block, or at the end of a line of sh: left out where NAME is not installed
    # long: WHY     at the end of a line of sh: not run, but its arguments are checked
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    "README.md",
    *sorted(
        str(path.relative_to(ROOT))
        for path in (ROOT / "docs").rglob("*.md")
        if "_build" not in path.parts
    ),
]

_FENCE = re.compile(r"^( *)(`{3,})([^\n`]*)\n(.*?)^ *\2 *$\n?", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """One fenced block."""

    language: str
    """What stands after its fence, such as python."""
    text: str
    line: int
    """Number of the first line of its text, from 1."""
    output: str | None = None
    """What it prints, where the document shows it."""

    @property
    def needs(self) -> list[str]:
        """Packages that it is left out without."""
        return re.findall(r"# needs (\w+)", self.text)


def blocks_of(text: str) -> list[Block]:
    """Fenced blocks in order; a block of text right after another one is its output."""
    found: list[Block] = []
    end = 0
    for match in _FENCE.finditer(text):
        indent, _, language, inside = match.groups()
        inside = re.sub(rf"^{indent}", "", inside, flags=re.MULTILINE)
        between = text[end : match.start()]
        end = match.end()
        if language.strip() == "text" and found and not between.strip():
            last = found.pop()
            found.append(Block(last.language, last.text, last.line, inside))
            continue
        line = text[: match.start(4)].count("\n") + 1
        found.append(Block(language.strip(), inside, line))
    return found


def prose_of(text: str) -> str:
    """The document without fenced blocks, indented blocks and code within lines."""
    text = _FENCE.sub("", text)
    text = re.sub(r"(?<=\n)(?: {4}.*\n)+", "", text)
    return re.sub(r"`[^`\n]+`", "", text)


def links_of(text: str) -> list[str]:
    """Targets of links and pictures within the project."""
    targets = re.findall(r"\]\(([^)\s]+)\)", prose_of(text))
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def anchors_of(text: str) -> set[str]:
    """What a link may point to within a document: its headings, as GitHub and MyST name them."""
    headings = re.findall(r"^#+ +(.+?) *$", _FENCE.sub("", text), re.MULTILINE)
    plain = (re.sub(r"[`*]|\]\([^)]*\)|\[", "", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}
