"""Rooms stay small and nothing imports in a circle; which room may import which: pyproject.toml.

The folders of C++ include in one direction, too: CMakeLists.txt says which.
"""

import ast
import os
import re
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import linattn_fast as la

PACKAGE = Path(la.__file__).parent
MOST_IN_A_ROOM = 14  # modules, beside __init__.py and __main__.py
MOST_AT_THE_ROOT = 6  # files of Python, stubs counted

BACKWARDS = {
    # Moments.fit is a method because sums are what one has in hand when a fit is wanted.
    ("linattn_fast.moments.moments", "linattn_fast.fitting.call"),
    # The compiled modules lie beside __init__.py, which is all that grimp sees of them.
    ("linattn_fast.arrays.compiled", "linattn_fast"),
    ("linattn_fast.backend.cuda.extension", "linattn_fast"),
}
"""Imports (importer, imported) that may close a circle."""


def cycle_among(imports: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle, the first one again at the end; else none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def imports_of_the_package() -> dict[str, set[str]]:
    """What each module imports of the package, also inside functions; types alone do not count."""
    grimp = pytest.importorskip("grimp", reason="comes with import-linter, of the dev extra")
    graph = grimp.build_graph("linattn_fast", exclude_type_checking_imports=True, cache_dir=None)
    return {name: set(graph.find_modules_directly_imported_by(name)) for name in graph.modules}


def imported_by_name(path: Path) -> list[str]:
    """Modules of the package that ``import_module("...")`` asks for, which no graph shows."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    names = [
        call.args[0].value
        for call in calls
        if ast.unparse(call.func).split(".")[-1] in ("import_module", "__import__")
        and isinstance(call.args[0], ast.Constant)
    ]
    return [name for name in names if name.startswith((".", "linattn_fast"))]


def modules_of_rooms() -> Counter[str]:
    """How many modules lie in each folder, by the room's path; rooms inside count by themselves."""
    folders = (
        path.parent.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if path.stem not in ("__init__", "__main__")
    )
    return Counter(folders)


def without(imports: dict[str, set[str]], some: set[tuple[str, str]]) -> dict[str, set[str]]:
    """Imports other than some (importer, imported)."""
    return {a: {b for b in bs if (a, b) not in some} for a, bs in imports.items()}


def test_modules_do_not_import_each_other_in_circles():
    imports = imports_of_the_package()
    assert cycle_among(without(imports, BACKWARDS)) == []


@pytest.mark.parametrize("exception", sorted(BACKWARDS))
def test_every_exception_is_needed(exception):
    allowed = BACKWARDS - {exception}
    cycle = cycle_among(without(imports_of_the_package(), allowed))
    assert set(exception) <= set(cycle)


def test_a_circle_is_found():
    imports = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert set(cycle_among(imports)) == {"a", "b", "c"}
    assert cycle_among(without(imports, {("c", "a")})) == []


def test_the_graph_has_imports_inside_functions_and_none_for_types_alone():
    imports = imports_of_the_package()
    assert "linattn_fast.fitting.call" in imports["linattn_fast.moments.moments"]  # Moments.fit
    assert "linattn_fast.fitting.result" not in imports["linattn_fast.moments.moments"]


def test_no_import_hides_from_the_graph():
    found = {
        path.relative_to(PACKAGE).as_posix(): names
        for path in PACKAGE.rglob("*.py")
        if (names := imported_by_name(path))
    }
    # The front door imports what few people need when it is asked for.
    assert found == {"__init__.py": [".programs"]}


def test_rooms_are_small_enough_to_see():
    rooms = modules_of_rooms()
    assert rooms["data"] > 1, "no rooms were found"
    rooms.pop(".")
    limits = dict.fromkeys(rooms, MOST_IN_A_ROOM)
    assert {room: n for room, n in rooms.items() if n > limits[room]} == {}


def test_the_root_has_only_what_people_import_directly():
    files = [path.name for pattern in ("*.py", "*.pyi") for path in PACKAGE.glob(pattern)]
    assert "__init__.py" in files
    assert len(files) <= MOST_AT_THE_ROOT, files


SOURCES = Path(__file__).parents[1] / "csrc"
DOOR, CHOICE = "kernels/table.hpp", "kernels/isa.hpp"
INCLUDES = {
    "common": set(),
    "kernels": {"common"},
    "core": {"common", DOOR},
    "softmax": {"common", DOOR},
    "bindings": {"common", "core", "softmax", DOOR, CHOICE},
    "cuda": {"common", "emulator.hpp"},
}
"""What the sources of a folder may include beside their own: folders, or single files."""


def broken_includes(sources: dict[str, str]) -> set[tuple[str, str]]:
    """(file, file it may not include), of texts by their paths under csrc/."""
    broken = set()
    for name, text in sources.items():
        room, folder = name.split("/")[0], Path("/csrc", name).parent
        for given in re.findall(r'^ *# *include +"(.+?)"', text, re.MULTILINE):
            path = Path(os.path.normpath(folder / given))
            included = path.relative_to("/csrc").as_posix()
            # The emulator's header is found by a search path, and not beside the file.
            included = given if given == "emulator.hpp" else included
            if not {included, included.split("/")[0]} & {room, *INCLUDES[room]}:
                broken.add((name, included))
    return broken


def test_folders_of_compiled_code_include_in_one_direction():
    paths = [path for path in SOURCES.rglob("*") if path.suffix in (".cpp", ".hpp", ".cu")]
    sources = {path.relative_to(SOURCES).as_posix(): path.read_text() for path in paths}
    assert {name.split("/")[0] for name in sources} == set(INCLUDES)
    assert broken_includes(sources) == set()


@pytest.mark.parametrize(
    ("name", "given", "included"),
    [
        ("core/moments.cpp", "../kernels/product.hpp", "kernels/product.hpp"),
        ("core/moments.cpp", "../kernels/isa.hpp", "kernels/isa.hpp"),
        ("kernels/table.cpp", "../core/tokens.hpp", "core/tokens.hpp"),
        ("common/slabs.hpp", "../kernels/table.hpp", "kernels/table.hpp"),
        ("cuda/bindings/arrays.cpp", "../../core/tokens.hpp", "core/tokens.hpp"),
    ],
)
def test_an_include_against_the_direction_is_found(name, given, included):
    assert broken_includes({name: f'#include "{given}"\n'}) == {(name, included)}


def docstrings(path: Path) -> list[tuple[int, str]]:
    """Line and text of every docstring of a file, those of attributes and constants among them."""
    return [
        (node.lineno, node.value.value.strip())
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]


ROOMS = sorted(path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("__init__.py"))
SHORTEST_PARAGRAPH = 50
"""Characters that say what lives in a room."""
SHORTEST_DOCSTRING = 12
"""Characters of a docstring that may be a sentence."""


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_what_lives_there(room):
    text = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text())) or ""
    assert len(text.split("\n\n")[0]) >= SHORTEST_PARAGRAPH


@pytest.mark.parametrize("room", ROOMS)
def test_docstrings_are_sentences(room):
    folder = PACKAGE / room
    fragments = [
        f"{path.relative_to(PACKAGE)}:{line}: {text}"
        for path in sorted([*folder.glob("*.py"), *folder.glob("*.pyi")])
        for line, text in docstrings(path)
        if text.startswith("Of ") or len(text) < SHORTEST_DOCSTRING
    ]
    assert fragments == []
