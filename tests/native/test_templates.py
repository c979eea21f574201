"""Templates of C files: values, blocks of lines with their indent, and places that stay empty."""

import pytest

from selftune.native.c.templates import fill


@pytest.fixture
def template(tmp_path):
    path = tmp_path / "file.c.in"
    path.write_text("/* @name */\nint @{name}_f(void)\n{\n    @lines\n    @text\n    return ${x}@@;\n}\n")
    return path


def test_values_and_blocks(template):
    long = " + ".join(["number"] * 20)
    text = fill(template, {"name": "cart", "lines": ["a;", f"b = {long};"], "text": 3})
    first, second = text.splitlines()[4:6]
    assert text.startswith("/* cart */\nint cart_f(void)\n{\n    a;\n    b = number")
    assert max(map(len, text.splitlines())) <= 116
    assert first.startswith("    b")
    assert second.startswith("        ")
    assert text.endswith("\n    3\n    return ${x}@;\n}\n")


@pytest.mark.parametrize("empty", [[], ""])
def test_an_empty_value_leaves_no_line(template, empty):
    text = fill(template, {"name": "cart", "lines": [], "text": empty})
    assert text == "/* cart */\nint cart_f(void)\n{\n    return ${x}@;\n}\n"


@pytest.mark.parametrize("missing", ["name", "lines"])
def test_a_missing_value_is_an_error(template, missing):
    values = {"name": "cart", "lines": [], "text": ""}
    del values[missing]
    with pytest.raises(KeyError, match=missing):
        fill(template, values)
