"""How much of a schema is shown as text: levels, lines, alternatives and references, up to each bound."""

from __future__ import annotations

from typing import Any

from tests.support.rows import for_each

from greenroom.protocol.content import parameters_text


def test_six_levels_below_a_parameter_are_shown() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for level in range(9, 0, -1):
        schema = {"type": "object", "properties": {f"p{level}": schema}}
    lines = parameters_text(schema).split("\n")
    assert [line.strip() for line in lines] == [f"p{level} (object)" for level in range(1, 8)]
    assert [len(line) - len(line.lstrip()) for line in lines] == [2 * level for level in range(7)]


@for_each(("count", "shown"), [(399, 399), (400, 400), (401, 401), (1_000, 401)])
def test_four_hundred_lines_are_shown_and_then_one_that_says_so(count: int, shown: int) -> None:
    lines = parameters_text({"properties": {f"p{number}": {} for number in range(count)}}, "  ").split("\n")
    assert len(lines) == shown
    assert (lines[-1] == "  (more than 400 lines, the rest is left out)") is (count > 400)


def test_thirty_two_references_are_opened_one_inside_the_other() -> None:
    def chain(length: int) -> str:
        defs: dict[str, Any] = {f"D{n}": {"$ref": f"#/$defs/D{n + 1}"} for n in range(length)}
        defs[f"D{length}"] = {"type": "string"}
        return parameters_text({"$defs": defs, "properties": {"p": {"$ref": "#/$defs/D0"}}})

    assert chain(31) == "p (string)"
    assert chain(32) == "p"


@for_each(
    ("reference", "text"),
    [
        ("#/$defs/a~1b", "p (string)"),
        ("#/$defs/c~0d", "p (string)"),
        ("#/$defs/e~01f", "p (string)"),
        ("#/$defs/none", "p"),
        ("other#/$defs/a~1b", "p"),
        ("#", "p"),
    ],
)
def test_a_reference_is_a_path_in_the_schema(reference: str, text: str) -> None:
    defs = {name: {"type": "string"} for name in ("a/b", "c~d", "e~1f")}
    assert parameters_text({"$defs": defs, "properties": {"p": {"$ref": reference}}}).split("\n")[0] == text


CONSTRAINTS = [
    "minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "multipleOf", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties", "default",
]  # fmt: skip


@for_each("key", CONSTRAINTS)
@for_each(("value", "said"), [(0, "0"), (False, "false"), (None, "null"), ("é", '"é"')])
def test_each_constraint_is_shown_whatever_its_value(key: str, value: Any, said: str) -> None:
    assert parameters_text({"properties": {"p": {key: value}}}) == f"p [{key}: {said}]"


@for_each("key", ["anyOf", "oneOf", "allOf", "patternProperties", "additionalProperties", "if", "not"])
def test_what_describes_parameters_in_another_way_is_said_to_be_complex(key: str) -> None:
    value = {"a": 1}
    assert parameters_text({key: value}) == "(complex schema)"
    assert parameters_text({key: False}) == "(no parameters)"


def test_lines_are_not_broken_by_what_a_server_says() -> None:
    schema = {"properties": {"a\nb": {"type": "x\ny", "description": " one\n two "}}, "required": ["a\nb"]}
    assert parameters_text(schema) == "a b (x y) *required* - one two"
    assert parameters_text({"properties": {"p": {"const": None}}}) == "p (const null)"
    assert parameters_text({"properties": {"p": {"enum": [0, "", None]}}}) == 'p (enum: 0, "", null)'
    assert parameters_text({"properties": {"p": {"type": ["a", 5, "a", "b"]}}}) == "p (a | b)"
    items = {"properties": {"p": {"type": "array", "items": {"type": "object", "properties": {"q": {}}}}}}
    assert parameters_text(items) == "p (array)\n  items (object)\n    q"
