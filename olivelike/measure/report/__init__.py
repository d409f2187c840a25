"""The report of a run: one HTML file that needs no network, made from the run's record.

| module | what it does |
| --- | --- |
| `step_facts` | what steps and commands found out, as values |
| `page` | `write_report`: the file, from a record and what commands leave beside it |
| `page.html`, `style.css` | the template, which escapes all text, and how it looks |
| `outcome` | the figures at the top; operators, quantised weights, speed, placement of nodes |
| `steps` | the axis of time, and the graph |
| `comparison` | what the record says by itself; results and pictures against the original |
| `content` | what sections are made of, as values |
| `graph_drawing` | drawings of a plan, for `olivelike graph` |
"""

from olivelike.measure.report.page import REPORT_FILE, write_report

__all__ = ["REPORT_FILE", "write_report"]
