"""The demo's data: enough documents, closed schemas, gold values that are valid and stand in the text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sortition.grammars.json_schema import json_schema
from sortition.integrations.documents import Document, read_documents
from sortition.integrations.prompts import Template
from sortition.integrations.validation import validator

DEMO = Path(__file__).parent.parent / "demo"
KINDS = sorted(path.parent.name for path in DEMO.glob("*/schema.json"))


def documents(kind: str) -> list[Document]:
    lines = DEMO / kind / "documents.jsonl"
    return read_documents(lines if lines.exists() else DEMO / kind / "documents")


def schema(kind: str) -> Any:
    return json.loads((DEMO / kind / "schema.json").read_text())


def gold(kind: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DEMO / kind / "gold.jsonl").read_text().splitlines()]


def test_there_is_enough_to_read() -> None:
    assert len(KINDS) >= 3
    assert sum(len(documents(kind)) for kind in KINDS) >= 24
    for kind in KINDS:
        for document in documents(kind):
            assert 60 <= len(document.text.split()) <= 150, document.id


@pytest.mark.parametrize("kind", KINDS)
def test_gold_values_are_valid_and_stand_in_the_text(kind: str) -> None:
    pytest.importorskip("jsonschema")
    check = validator(schema(kind))
    assert check is not None
    grammar = json_schema(schema(kind))
    values = gold(kind)
    assert [value["id"] for value in values] == [document.id for document in documents(kind)]
    for value, document in zip(values, documents(kind), strict=True):
        assert check(value["value"]) is None
        assert grammar.accepts(json.dumps(value["value"]))
        text = document.text.lower()
        missing = [word for word in value["value"].values() if str(word).lower() not in text]
        assert not missing, document.id


@pytest.mark.parametrize("kind", KINDS)
def test_schemas_are_closed_and_every_key_is_required(kind: str) -> None:
    assert schema(kind)["additionalProperties"] is False
    assert schema(kind)["required"] == list(schema(kind)["properties"])
    assert 3 <= len(schema(kind)["properties"]) <= 6


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_show_the_document(kind: str) -> None:
    prompt = Template((DEMO / kind / "prompt.txt").read_text()).fill("<the text>", schema(kind))
    assert "<the text>" in prompt


def test_the_sources_are_stated() -> None:
    assert "written for this repository" in (DEMO / "README.md").read_text()
