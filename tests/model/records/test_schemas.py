"""What records look like as JSON is pinned: others read them, and earlier versions have to be read for ever.

After a change on purpose, with a new version and its migration, renew the file with
`PYTHONPATH=. python tests/model/records/test_schemas.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from olivelike.engine.output.staging import Journal
from olivelike.model.records.output import OutputRecord
from olivelike.model.records.run_record import RunRecord

GOLDEN = Path(__file__).with_name("schemas.json")


def schemas() -> dict[str, Any]:
    return {cls.__name__: TypeAdapter(cls).json_schema() for cls in (OutputRecord, RunRecord, Journal)}


def test_records_have_the_fields_that_they_had() -> None:
    assert schemas() == json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_the_schemas_are_of_the_versions_that_are_written() -> None:
    from tests.fixtures.sample_records import output_record, run_record

    assert json.loads(output_record().to_bytes())["version"] == run_record().to_json()["version"] == 2


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(schemas(), indent=1) + "\n", encoding="utf-8")
