"""The published JSON Schemas of study.json and launches.jsonl are those of the code."""

import json
from pathlib import Path

import pytest

from bench.store import schemas

DOCS = Path(__file__).parents[1] / "docs" / "schema"


@pytest.mark.parametrize("name", ["study.json", "launches.jsonl", "checkpoints.jsonl", "verify.json"])
def test_the_published_schema_is_the_codes(name):
    """What docs/schema says is what this version writes; a changed record needs it written anew."""
    published = json.loads((DOCS / f"{Path(name).stem}.schema.json").read_text())
    assert published == json.loads(json.dumps(schemas()[name]))
