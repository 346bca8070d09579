"""What the documents show is true: examples run and print what they say, links lead somewhere."""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import io
import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from markdown import DOCUMENTS, ROOT, Block, anchors_of, blocks_of, links_of, prose_of

from linattn_fast.backend.cuda import backend as cuda
from linattn_fast.cli.program import parser

SHELL = ("sh", "bash", "shell", "console")
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def text_of(document: str) -> str:
    return (ROOT / document).read_text()


def require_output(block: Block, printed: str, document: str) -> None:
    """Fail where a block prints something else than the document shows."""
    if block.output is not None:
        same = doctest.OutputChecker().check_output(block.output, printed, _FLAGS)
        where = f"{document}:{block.line}"
        assert same, f"{where} shows\n{block.output}\nbut prints\n{printed}"


def missing(names: list[str]) -> list[str]:
    """Names that are not installed; the folder tests/dask would pass for a package."""
    specs = {name: importlib.util.find_spec(name) for name in names}
    return [name for name, spec in specs.items() if spec is None or spec.origin is None]


class Reader:
    """Someone who tries what a document shows, block by block, in an empty folder."""

    def __init__(self, document: str, folder: Path) -> None:
        self.document, self.folder = document, folder
        self.names: dict[str, object] = {"__name__": "document"}
        self.left_out: list[str] = []

    def leaves_out(self, needs: list[str], line: int) -> bool:
        absent = [name for name in missing(needs) if name not in sys.modules]
        self.left_out += [f"line {line} needs {name}" for name in absent]
        return bool(absent)

    def run_python(self, block: Block) -> None:
        if self.leaves_out(block.needs, block.line):
            return
        code = "\n" * (block.line - 1) + block.text  # a traceback has the document's lines
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(ROOT / self.document), "exec"), self.names)
        require_output(block, printed.getvalue(), self.document)

    def run_shell(self, block: Block) -> None:
        printed = ""
        for number, line in enumerate(block.text.splitlines(), block.line):
            command, _, mark = line.partition("#")
            if "linattn-fast " not in command or "pip install" in command:
                continue
            if mark.strip().startswith("long:"):
                parser().parse_args(shlex.split(command)[1:])
                continue
            if self.leaves_out(re.findall(r"needs (\w+)", mark), number):
                return
            done = subprocess.run(
                command, shell=True, cwd=self.folder, env=self.environment(), check=False,
                capture_output=True, text=True,
            )  # fmt: skip
            assert done.returncode == 0, f"{self.document}:{number}: {line}\n{done.stderr}"
            assert "warning" not in done.stderr.lower(), f"{self.document}:{number}: {done.stderr}"
            printed += done.stdout
        require_output(block, printed, self.document)

    def environment(self) -> dict[str, str]:
        """With the program on the path, as it is after an installation."""
        program = self.folder / "bin" / "linattn-fast"
        if not program.exists():
            program.parent.mkdir()
            program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m linattn_fast.cli "$@"\n')
            program.chmod(0o755)
        path = f"{program.parent}{os.pathsep}{os.environ.get('PATH', '')}"
        return {**os.environ, "PATH": path, "COLUMNS": "100"}


def runs(block: Block) -> bool:
    return block.language == "python" or (block.language in SHELL and "linattn-fast " in block.text)


@pytest.mark.parametrize(
    "document", [name for name in DOCUMENTS if any(map(runs, blocks_of(text_of(name))))]
)
@pytest.mark.filterwarnings("error::linattn_fast.DataWarning")  # readers would see it
def test_examples_run_and_print_what_the_document_says(document, tmp_path, monkeypatch, request):
    blocks = blocks_of(text_of(document))
    if any("cupy" in block.needs for block in blocks) and cuda.obstacle() is not None:
        request.getfixturevalue("gpu")  # the make-believe one
    monkeypatch.chdir(tmp_path)
    reader = Reader(document, tmp_path)
    for block in blocks:
        if block.language == "python":
            reader.run_python(block)
        elif block.language in SHELL:
            reader.run_shell(block)
    if reader.left_out:
        assert not os.environ.get("LINATTN_REQUIRE_LIBRARIES"), reader.left_out
        pytest.skip(f"all but these ran: {', '.join(reader.left_out)}")


def test_an_example_that_prints_something_else_is_found(tmp_path):
    (block,) = blocks_of("```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n")
    with pytest.raises(AssertionError, match=r"shows\s+3\s+but prints\s+2"):
        Reader("README.md", tmp_path).run_python(block)
    (block,) = blocks_of("```sh\nlinattn-fast heads nowhere.npz\n```\n")
    with pytest.raises(AssertionError, match=r"nowhere\.npz"):
        Reader("README.md", tmp_path).run_shell(block)


def test_every_language_of_a_fenced_block_is_one_that_is_known():
    """A misspelt one would not run."""
    known = {"python", "text", "json", *SHELL}
    for document in DOCUMENTS:
        for block in blocks_of(text_of(document)):
            directive = block.language.startswith("{")
            assert directive or block.language in known, f"{document}:{block.line}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_to_a_file_and_a_heading(document):
    for target in links_of(text_of(document)):
        name, _, anchor = target.partition("#")
        path = (ROOT / document).parent / name if name else ROOT / document
        assert path.exists(), f"{document}: no file {target}"
        if anchor:
            assert anchor in anchors_of(path.read_text()), f"{document}: no heading {target}"


def test_no_formula_is_broken_into_a_list_or_a_quotation():
    """As Markdown takes a line of a paragraph that begins with a plus, 1) or a greater-than."""
    for document in DOCUMENTS:
        lines = prose_of(text_of(document)).split("\n")
        for before, line in itertools.pairwise(lines):
            broken = before.strip() and re.match(r" *(\+ |1\) |>)", line)
            assert not broken, f"{document}: {line}"


def test_commands_of_make_in_the_documents_exist():
    makefile = text_of("Makefile")
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    for document in DOCUMENTS:
        for target in re.findall(r"(?:`|^ *)make ([\w-]+)", text_of(document), re.MULTILINE):
            assert target in targets, f"{document}: make {target}"


def test_tables_in_the_documents_are_those_that_were_measured():
    shown, marked = 0, re.compile(r"<!-- (bench/\S+) -->\n(.*?)<!-- end -->", re.DOTALL)
    for document in DOCUMENTS:
        for name, table in marked.findall(text_of(document)):
            assert table == text_of(name), f"{document}: {name}"
            shown += 1
    assert shown
