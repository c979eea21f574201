"""One way to write numbers that JSON does not have."""

import json

import pytest
from pydantic import BaseModel

from selftune.foundation import json_values

INF, NAN = float("inf"), float("nan")


class Model(BaseModel):
    mean: float
    names: tuple[str, ...] = ("a",)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (INF, "inf"),
        ([-INF, NAN, 1.5, 2, True, None, "inf"], ["-inf", "nan", 1.5, 2, True, None, "inf"]),
        ({"a": {"b": (NAN,)}}, {"a": {"b": ["nan"]}}),
        ({"model": Model(mean=NAN), "list": [Model(mean=1.0)]}, {
            "model": {"mean": None, "names": ["a"]},
            "list": [{"mean": 1.0, "names": ["a"]}],
        }),
    ],
)  # fmt: skip
def test_the_values_of_json(value, expected):
    assert json_values.plain(value) == expected
    assert json.loads(json_values.text(value)) == expected


def test_the_caller_may_mark_the_numbers_to_read_them_again():
    assert json_values.plain([INF, "inf"], not_finite=lambda number: {"float": str(number)}) == [
        {"float": "inf"},
        "inf",
    ]
