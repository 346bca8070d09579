"""Parts of a long run, kept as they are finished: an interrupted run goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ..features.files import replacing
from .figure import Settings

_FOLDER = "paper-runs"


def kept(
    settings: Settings, name: str, setting: dict[str, Any], make: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """What ``make`` returns, from ``paper-runs/NAME.json`` if it was made in the same setting.

    Both are JSON: numbers, words, lists and dictionaries with words as keys. A file that cannot be
    read, or was made in another setting, is made again.
    """
    if settings.folder is None:
        return make()
    folder = settings.folder / _FOLDER
    path = folder / f"{name}.json"
    try:
        found = json.loads(path.read_text())
        if found["setting"] == setting:
            return dict(found["result"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    result = make()
    folder.mkdir(exist_ok=True)
    with replacing(path) as file:
        file.write(json.dumps({"setting": setting, "result": result}).encode())
    return result
