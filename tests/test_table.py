from __future__ import annotations

from olivelike._table import Column, Table

TABLE = Table(("name", "bytes", ""), [("a", "12", "x"), ("long", "3", "")], {1})


def test_columns_are_aligned_and_lines_end_without_blanks():
    assert TABLE.lines() == ["name  bytes", "a        12  x", "long      3"]


def test_a_table_of_rows_shows_what_columns_make_of_them():
    columns = [
        Column("name", str, right=False),
        Column("twice", lambda row: str(2 * row)),
        Column("none", lambda _: ""),
    ]
    table = Table.of([5, 50], columns, "Numbers")
    assert table.filled().lines() == ["Numbers", "name  twice", "5        10", "50      100"]
    assert table.keeping(["twice"]).rows == [("10",), ("100",)]
    assert table.keeping(["twice"]).right == [0]


def test_markdown_has_a_rule_below_the_titles():
    assert TABLE.markdown()[:3] == ["| name | bytes |  |", "| --- | --- | --- |", "| a | 12 | x |"]


def test_csv_quotes_what_has_commas_and_leaves_out_the_titles_below_others():
    table = Table(("a", "b"), [("x,y", None)])
    assert table.csv() == 'a,b\n"x,y",\n'
    assert table.csv(header=False) == '"x,y",\n'
