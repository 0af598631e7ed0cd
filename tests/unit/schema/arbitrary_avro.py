"""Avro schemas, and values of them, as hypothesis draws them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

_INT = st.integers(-(2**31), 2**31 - 1)
_LONG = st.integers(-(2**63), 2**63 - 1)
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": _INT,
    "long": _LONG,
    "float": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "bytes": st.binary(max_size=200),
    "string": st.text(max_size=100),
}


@st.composite
def schemas(draw: st.DrawFn, depth: int = 3) -> Any:
    """A schema in Python's form. Names are given by `named`."""
    kinds = list(_VALUES)
    if depth:
        kinds += ["record", "record", "enum", "fixed", "array", "map", "union"]
    kind = draw(st.sampled_from(kinds))
    inner = schemas(depth - 1)
    match kind:
        case "record":
            fields = draw(st.lists(inner, max_size=4))
            return {
                "type": "record",
                "fields": [{"name": f"f{number}", "type": one} for number, one in enumerate(fields)],
            }
        case "enum":
            return {"type": "enum", "symbols": ["A", "B", "C"][: draw(st.integers(1, 3))]}
        case "fixed":
            return {"type": "fixed", "size": draw(st.integers(0, 4))}
        case "array":
            return {"type": "array", "items": draw(inner)}
        case "map":
            return {"type": "map", "values": draw(inner)}
        case "union":
            # Numbers and strings each once, so that it is plain which branch a value belongs to.
            branches = draw(st.lists(st.sampled_from(["null", "boolean", "long", "string"]), unique=True))
            return branches or ["null"]
    return kind


def named(schema: Any, place: str = "N") -> Any:
    """With a name for each type that needs one."""
    if isinstance(schema, list):
        return [named(one, f"{place}_{number}") for number, one in enumerate(schema)]
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    if made["type"] in ("record", "enum", "fixed"):
        made["name"] = place
    for key in ("items", "values"):
        if key in made:
            made[key] = named(made[key], f"{place}_{key}")
    if "fields" in made:
        made["fields"] = [
            {**one, "type": named(one["type"], f"{place}_{one['name']}")} for one in made["fields"]
        ]
    return made


def values(schema: Any) -> st.SearchStrategy[Any]:
    if isinstance(schema, list):
        return st.one_of([values(one) for one in schema])
    kind = schema if isinstance(schema, str) else schema["type"]
    match kind:
        case "record":
            return st.fixed_dictionaries({one["name"]: values(one["type"]) for one in schema["fields"]})
        case "enum":
            return st.sampled_from(schema["symbols"])
        case "fixed":
            return st.binary(min_size=schema["size"], max_size=schema["size"])
        case "array":
            return st.lists(values(schema["items"]), max_size=4)
        case "map":
            return st.dictionaries(st.text(max_size=5), values(schema["values"]), max_size=4)
    return _VALUES[kind]
