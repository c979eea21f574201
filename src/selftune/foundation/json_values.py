"""JSON has no infinity and no NaN: such a number becomes "inf", "-inf" or "nan", and null in a field of a model."""

import json
import math
from collections.abc import Callable
from typing import Any

from . import safe_text


def plain(value: Any, *, not_finite: Callable[[float], Any] = str) -> Any:
    """Return `value` with only types that JSON has; `not_finite` replaces the numbers that JSON does not have.

    A pydantic model becomes a table. Its fields declare their types, so that a text could not replace a number; there
    pydantic writes null.
    """
    if hasattr(value, "model_dump_json"):
        return json.loads(value.model_dump_json())
    if isinstance(value, dict):
        return {name: plain(each, not_finite=not_finite) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each, not_finite=not_finite) for each in value]
    return not_finite(value) if isinstance(value, float) and not math.isfinite(value) else value


def text(value: Any, *, indent: int | None = 2) -> str:
    """Return `value` as JSON for files."""
    return json.dumps(plain(value), indent=indent, ensure_ascii=False, allow_nan=False)


def text_for_terminal(value: Any) -> str:
    """Return `value` as JSON for stdout: the control codes that JSON allows in a text are escapes."""
    return safe_text.CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text(value))
