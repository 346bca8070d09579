"""The API reference is complete, and the examples in docstrings print what they say."""

import ast
import dataclasses
import doctest
import importlib
import inspect
import itertools
import pkgutil
import re

import numpy as np
import pytest
from markdown import ROOT

import linattn_fast as la

MODULES = [
    info.name
    for info in pkgutil.walk_packages(la.__path__, "linattn_fast.")
    if not info.name.split(".")[-1].startswith("_c")  # compiled
]
WITH_TORCH = (
    "heads.torch_module",
    "softmax.layer.torch_module",
    "paper.memory_training",
    "paper.models",
    "paper.training",
)
OPTIONAL = {"dask": "dask.array"} | dict.fromkeys(WITH_TORCH, "torch")
"""What the examples of a module need, or the module itself."""


class Finder(doctest.DocTestFinder):
    """Finds examples of decorated functions too: what they wrap is from the module."""

    def __init__(self):
        super().__init__(exclude_empty=True)

    def _from_module(self, module, object):
        return super()._from_module(module, inspect.unwrap(object) if callable(object) else object)


@pytest.mark.parametrize("name", ["linattn_fast", *MODULES])
def test_docstring_examples_are_true(name):
    for module, package in OPTIONAL.items():
        if name == f"linattn_fast.{module}":
            pytest.importorskip(package)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for example in Finder().find(importlib.import_module(name)):
        runner.run(example)
    assert runner.failures == 0


def test_examples_of_decorated_functions_are_found():
    found = {
        test.name for test in Finder().find(importlib.import_module("linattn_fast.fitting.call"))
    }
    assert "linattn_fast.fitting.call.fit" in found


def test_every_public_function_has_an_example():
    for name in la.__all__:
        value = getattr(la, name)
        if inspect.isfunction(value) and name != "get_num_threads":  # with set_num_threads
            assert ">>>" in value.__doc__, name


def in_the_reference() -> set[str]:
    """Names that docs/api/ documents, with their module."""
    found = set()
    for page in (ROOT / "docs" / "api").glob("*.md"):
        module = ""
        for directive, name in re.findall(r"^\.\. (\w+):: *(\S+)", page.read_text(), re.MULTILINE):
            if directive == "currentmodule":
                module = name
            elif directive in ("autofunction", "autoclass", "autoexception"):
                found.add(f"{module}.{name}")
    return found


def test_every_public_name_is_in_the_reference():
    wanted = {f"linattn_fast.{name}" for name in (*la.__all__, "LinearAttentionRegressor")}
    wanted |= {"linattn_fast.dask.fit", "linattn_fast.dask.moments"}
    names = {name for name in wanted if not inspect.ismodule(getattr(la, name[13:], None))}
    for part in ("datasets", "programs", "softmax"):
        module = importlib.import_module(f"linattn_fast.{part}")
        public = (name for name in module.__all__ if callable(getattr(module, name)))
        names |= {f"linattn_fast.{part}.{name}" for name in public}
    names.add("linattn_fast.softmax.SoftmaxAttentionRegressor")
    # Maps that are values have their sentence in the page itself
    maps = {name: getattr(la.maps, name) for name in la.maps.__all__}
    values = {name for name, value in maps.items() if isinstance(value, la.maps.FeatureMap)}
    names |= {f"linattn_fast.maps.{name}" for name in set(maps) - values}
    assert in_the_reference() == names


def test_every_field_of_a_result_is_documented():
    """Sphinx leaves out what has no docstring; what users make has Parameters instead."""
    for name in la.__all__:
        value = getattr(la, name)
        if not dataclasses.is_dataclass(value) or "Parameters\n" in value.__doc__:
            continue
        body = ast.parse(inspect.getsource(value)).body[0].body
        documented = {
            field.target.id
            for field, doc in itertools.pairwise(body)
            if isinstance(field, ast.AnnAssign) and isinstance(doc, ast.Expr)
        }
        assert documented == {field.name for field in dataclasses.fields(value)}, name


def test_every_public_name_has_a_docstring():
    for name in la.__all__:
        assert getattr(la, name).__doc__, name


def test_results_are_numpy_arrays(rng):
    fit = la.fit(rng.standard_normal((30, 4, 2)), rng.standard_normal(30))
    assert type(fit.coefficients) is np.ndarray
    assert isinstance(la.__version__, str)
