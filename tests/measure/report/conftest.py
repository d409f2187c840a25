"""A record to change, and reports as parsed documents."""

from __future__ import annotations

import copy
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from example_run import RECORD

from olivelike.measure.report.page import Beside, page
from olivelike.model.records.run_record import RunRecord


@pytest.fixture
def record() -> dict[str, Any]:
    """A record to change, as 0.1.0 wrote it."""
    return copy.deepcopy(RECORD)


class Report:
    """A page and what it shows."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.root = ET.fromstring(text.removeprefix("<!DOCTYPE html>\n"))

    def elements(self, name: str) -> list[ET.Element]:
        return [element for element in self.root.iter() if element.tag.rpartition("}")[2] == name]

    def shown(self) -> str:
        """Return the text of the body."""
        return " ".join(text.strip() for text in self.elements("body")[0].itertext() if text.strip())

    def headings(self) -> list[str]:
        return ["".join(heading.itertext()) for heading in self.elements("h2")]

    def tiles(self) -> dict[str, tuple[str, str]]:
        """Return each tile's figure and what is said of it, by its name."""
        (tiles,) = (found for found in self.elements("dl") if found.get("class") == "tiles")
        return {
            "".join(name.itertext()): ("".join(said[0].itertext()), "".join(said[1].itertext())) for name, said in tiles
        }

    def steps(self) -> list[tuple[str, str]]:
        """Return each step of the graph: its class, and what it says."""
        steps = [item for item in self.elements("li") if (item.get("class") or "").startswith("step ")]
        return [(item.get("class").removeprefix("step "), " ".join(item.itertext())) for item in steps]

    def table(self, caption: str) -> ET.Element:
        """Return the only table whose caption begins so."""
        (table,) = (t for t in self.elements("table") if t.findtext("caption").startswith(caption))
        return table

    def rows(self, caption: str) -> list[list[str]]:
        """Return the cells of a table's body."""
        return [["".join(cell.itertext()) for cell in row] for row in self.table(caption).find("tbody")]


@pytest.fixture
def report(tmp_path):
    """Return the report of a record."""

    def report(
        record: Any, profile: Any = None, folder: Path = tmp_path, verification: Any = None, bench: Any = None
    ) -> Report:
        return Report(page(RunRecord.from_json(record), Beside(folder, profile, verification, bench)))

    return report
