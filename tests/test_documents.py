"""Every example in the docstrings and in the README runs and prints what it says."""

import doctest
import importlib
import importlib.util
import pkgutil
import re
from pathlib import Path

import numpy as np
import pytest

import linattn_fast as la

ROOT = Path(__file__).parent.parent
NEED_TORCH = {f"linattn_fast.paper.{name}" for name in ("memory_training", "models", "training")}
MODULES = [
    info.name
    for info in pkgutil.walk_packages(la.__path__, "linattn_fast.")
    if not info.name.split(".")[-1].startswith("_c")  # compiled
    and (info.name not in NEED_TORCH or importlib.util.find_spec("torch") is not None)
]


@pytest.mark.parametrize("name", ["linattn_fast", *MODULES])
def test_docstring_examples_are_true(name):
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    outcome = doctest.testmod(importlib.import_module(name), optionflags=flags)
    assert outcome.failed == 0


def test_docstring_examples_are_found():
    found = sum(doctest.testmod(importlib.import_module(name)).attempted for name in MODULES)
    assert found > 20


@pytest.mark.parametrize(
    "document", ["README.md", "docs/files.md", "docs/paper.md", "docs/scale.md", "docs/sklearn.md"]
)
def test_python_examples_of_documents_run(document, tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), flags=re.DOTALL)
    assert blocks
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, document, "exec"), names)


def test_every_public_name_is_documented():
    for name in la.__all__:
        assert getattr(la, name).__doc__, name


def test_results_are_numpy_arrays(rng):
    fit = la.fit(rng.standard_normal((30, 4, 2)), rng.standard_normal(30))
    assert type(fit.coefficients) is np.ndarray
    assert isinstance(la.__version__, str)
