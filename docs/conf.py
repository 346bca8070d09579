"""How Sphinx builds the manual: ``make docs``, with warnings as errors and without a network."""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx
from sphinx.util.inspect import TypeAliasForwardRef

import linattn_fast

project = "linattn_fast"
author = "the authors of linattn_fast"
release = version = linattn_fast.__version__

extensions = ["myst_parser", "numpydoc", "sphinx.ext.autodoc", "sphinx.ext.autosummary"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"linattn_fast {release}"
html_static_path = ["_static"]
html_css_files = ["manual.css"]
html_copy_source = False
html_show_copyright = False

myst_heading_anchors = 4
smartquotes = False  # a transpose is no apostrophe
highlight_language = "none"  # indented blocks are formulas

autosummary_generate = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
# Kinds of arguments that signatures show by name; docs/api/index.md says what they are.
autodoc_type_aliases = {
    name: name
    for name in (
        *("Array", "Context", "Decoded", "Floats", "Method", "Positions", "Precision", "Seed"),
        *("Solver", "Token", "Value", "Verdict"),
    )
} | {"storage.PathLike": "PathLike", "npt.DTypeLike": "DTypeLike"}
python_maximum_signature_line_length = 90
python_use_unqualified_type_names = True
# Within a union, Sphinx shows the object that stands for the name.
TypeAliasForwardRef.__repr__ = lambda self: self.name

numpydoc_show_class_members = False  # autodoc lists them
numpydoc_class_members_toctree = False
# Every argument is documented, under its own name, and so is what is returned; sections are the
# known ones, in order. Types stand in signatures alone; arguments are grouped by subject; and a
# docstring may open with a formula or a question. That there is one is ruff's to check.
numpydoc_validation_checks = {
    "GL05", "GL06", "GL07", "GL09", "GL10", "PR01", "PR02", "PR05", "PR06", "PR07", "PR08",
    "PR09", "PR10", "RT01", "RT03", "RT04", "RT05", "SA02", "SA03", "SA04", "SS04", "YD01",
}  # fmt: skip

RESULTS = (
    "FitMany",
    "AlphaChoice", "BackendInfo", "Certificate", "ContextDataset", "Fit", "FitInfo", "HeadMatch",
    "HeadPath", "LayerDataset", "RankPath", "Recovery", "RidgePath",
    "Chain", "Exponential", "Landmarks",
    "Case", "Comparison", "HeldOut", "Identifiability", "Report", "Start",
    "Computation", "Configuration", "ProgramCertificate", "Run", "programs.Layer",
)  # fmt: skip
"""Classes that functions return and nobody calls: their fields are documented one by one."""
numpydoc_validation_exclude = {rf"^linattn_fast\.(\w+\.)?({'|'.join(RESULTS)})$", r"\.__\w+__$"}

# What belongs to other packages, whose inventories would have to come from a network.
nitpick_ignore_regex = [
    (r"py:.*", r"(numpy|np|npt|collections|typing|os|matplotlib|sklearn)\..*"),
    (r"py:class", r"(bool|dict|float|int|list|object|slice|str|tuple)"),
    (r"py:class", r"(Any|Axes|Callable|DTypeLike|Iterable|Literal|Sequence)"),
    (r"py:class", r"(Attending|DeterminedRange|_Asked|storage.PathLike)"),  # inner types
]


def _without_constructor(
    app: Sphinx, what: str, name: str, obj: object, options: Any, signature: str, returns: str
) -> tuple[str, str | None] | None:
    """Leave out how a result is made: users get it from a function."""
    hidden = what == "class" and name.endswith(tuple(f".{result}" for result in RESULTS))
    return ("", None) if hidden else None


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-signature", _without_constructor)
