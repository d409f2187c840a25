"""The report of a run: one HTML file that needs no network, made from the run's record.

| module | what it does |
| --- | --- |
| `write` | `write_report`: the file, from a record and what lies beside it |
| `beside` | what `olivelike profile`, `verify` and `bench` leave beside a report |
| `reading` | a record's JSON as values; nothing in it is taken for granted |
| `paths` | takes absolute paths out of everything |
| `source` | how origins read |
| `outcome` | the figures at the top; `chains` and `steps` the graph and the axis of time |
| `page`, `style` | the page around the sections, and how it looks |
| `element` | HTML elements whose text is always escaped |
| all others | a section each |
"""

from olivelike.measure.report.write import REPORT_FILE, write_report

__all__ = ["REPORT_FILE", "write_report"]
