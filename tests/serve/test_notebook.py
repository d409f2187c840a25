"""Styles and presets, by the notebook itself, over HTTP, and in A1111's requests."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from olivelike._files import held
from olivelike.errors import SourceError, StoreError, UsageError
from olivelike.serve.gallery import notebook as module
from olivelike.serve.gallery.notebook import Notebook, Preset, Style


@pytest.fixture
def notebook(tmp_path):
    return Notebook(tmp_path / "styles.csv", tmp_path / "presets.json")


def test_a1111s_styles_are_read_and_written(notebook, tmp_path):
    file = tmp_path / "styles.csv"
    file.write_bytes(
        b"\xef\xbb\xbfname,prompt,negative_prompt\r\nNone,,\r\n"
        b'Oil,"{prompt}, oil, ""thick""",blurry\r\n,lost,\r\nbare\r\n'
    )
    oil = Style(name="Oil", prompt='{prompt}, oil, "thick"', negative_prompt="blurry")
    assert notebook.styles() == [Style(name="None"), oil, Style(name="bare")]
    notebook.keep_style(Style(name="Ink", prompt="ink,\nlines"))
    notebook.keep_style(oil.model_copy(update={"negative_prompt": ""}))
    notebook.drop_style("None")
    assert file.read_bytes() == (
        b"\xef\xbb\xbfname,prompt,negative_prompt\r\n"
        b'Oil,"{prompt}, oil, ""thick""",\r\nbare,,\r\nInk,"ink,\nlines",\r\n'
    )
    with pytest.raises(SourceError, match="'None'"):
        notebook.drop_style("None")


def test_columns_of_other_programs_stay_in_the_file_of_styles(notebook, tmp_path):
    file = tmp_path / "styles.csv"
    file.write_bytes(b"name,prompt,category,negative_prompt\r\nOil,oil,art,blurry,more\r\nbare,,,\r\n")
    notebook.keep_style(Style(name="Oil", prompt="thick oil"))
    notebook.keep_style(Style(name="Ink", prompt="ink"))
    assert file.read_bytes().decode("utf-8-sig") == (
        "name,prompt,category,negative_prompt\r\nOil,thick oil,art,\r\nbare,,,\r\nInk,ink,,\r\n"
    )


def test_styles_are_added_as_a1111_adds_them(notebook):
    notebook.keep_style(Style(name="Oil", prompt="painting of {prompt}, oil", negative_prompt="blurry"))
    notebook.keep_style(Style(name="Ink", prompt="ink"))
    assert notebook.applied(["Oil", "Ink"], "a cat", "") == ("painting of a cat, oil, ink", "blurry")
    assert notebook.applied([], "a cat", "x") == ("a cat", "x")
    with pytest.raises(UsageError, match="did you mean 'Oil'"):
        notebook.applied(["Oli"], "a cat", "")


def test_presets_have_bounds(notebook, tmp_path, monkeypatch):
    notebook.keep_preset(Preset(name="large", form={"fields": {"width": "512"}}))
    assert notebook.presets() == [Preset(name="large", form={"fields": {"width": "512"}})]
    with pytest.raises(UsageError, match="more than 65,536 bytes"):
        notebook.keep_preset(Preset(name="long", form={"prompt": "x" * 70_000}))
    monkeypatch.setattr(module, "MOST_PRESETS", 1)
    with pytest.raises(UsageError, match="delete one first"):
        notebook.keep_preset(Preset(name="small", form={}))
    for damaged in (b"[1]", b'{"a": 1}', b"{", b"\xff"):
        (tmp_path / "presets.json").write_bytes(damaged)
        with pytest.raises(SourceError, match=r"presets\.json"):
            notebook.presets()


def test_styles_and_presets_are_kept_over_http_and_named_in_a1111s_requests(server, client):
    kept = {"prompt": "a red circle of {prompt}", "negative_prompt": "grey"}
    assert client.put("/api/styles/of/the day", json=kept).status_code == 204
    for address in ("/api/styles", "/sdapi/v1/prompt-styles"):
        assert {"name": "of/the day", **kept} in client.get(address).json()
    asked = {"prompt": "ink", "styles": ["of/the day"], "steps": 1, "width": 32, "height": 32}
    drawn = client.post("/sdapi/v1/txt2img", json=asked).json()
    assert "a red circle of ink\nNegative prompt: grey\n" in drawn["info"].encode().decode("unicode_escape")
    assert client.delete("/api/styles/of/the day").status_code == 204
    assert client.put("/api/presets/mine", json={"fields": {"steps": "7"}}).status_code == 204
    assert {"name": "mine", "form": {"fields": {"steps": "7"}}} in client.get("/api/presets").json()
    assert [client.delete("/api/presets/mine").status_code for _ in range(2)] == [204, 404]
    for name in ("%00", "%E2%80%83"):  # A wide space is no name either.
        assert client.put(f"/api/styles/{name}", json=kept).status_code == 422
    assert "of/the day" not in [style.name for style in server.service.notebook.styles()]


def test_nothing_is_kept_that_could_not_be_read_again(notebook, monkeypatch):
    oil = Style(name="Oil", prompt="oil")
    notebook.keep_style(oil)
    notebook.keep_style(Style(name="Ink", prompt="ink\rOil"))
    assert notebook.styles() == [oil, Style(name="Ink", prompt="ink\rOil")]
    notebook.keep_preset(Preset(name="mine", form={}))
    deep = 0
    for _ in range(49):
        deep = [deep]
    for form in ({"a": float("nan")}, {"a": "\ud800"}, {"a": deep}):
        with pytest.raises(UsageError, match="can't be kept"):
            notebook.keep_preset(Preset(name="other", form=form))
    monkeypatch.setattr(module, "_MOST_BYTES", 100)
    with pytest.raises(UsageError, match="more than the 100 bytes"):
        notebook.keep_preset(Preset(name="long", form={"prompt": "x" * 100}))
    with pytest.raises(UsageError, match="more than the 100 bytes"):
        notebook.keep_style(Style(name="long", prompt="x" * 100))
    assert [one.name for one in notebook.presets()] == ["mine"]


def test_a_file_that_has_no_styles_or_too_many_loses_none(notebook, tmp_path, monkeypatch):
    file = tmp_path / "styles.csv"
    file.write_bytes(b"day;hours\n1;8\n")
    with pytest.raises(SourceError, match="no column `name`"):
        notebook.keep_style(Style(name="Oil"))
    assert file.read_bytes() == b"day;hours\n1;8\n"
    monkeypatch.setattr(module, "MOST_STYLES", 1)
    file.write_bytes(b"name,prompt,negative_prompt\na,,\nb,,\nc,,\n")
    notebook.drop_style("b")
    assert [one.name for one in notebook.styles()] == ["a", "c"]


def test_letters_of_spreadsheets_are_read_and_written_as_utf8(notebook, tmp_path):
    file, words = tmp_path / "styles.csv", "Öl auf Leinwand, 50 €, “dick”"
    for encoding in ("cp1252", "utf-16", "utf-8"):
        file.write_bytes(f'name,prompt,negative_prompt\r\nÖl,"{words}",ß\r\n'.encode(encoding))
        notebook.keep_style(Style(name="Ink"))
        assert notebook.styles() == [Style(name="Öl", prompt=words, negative_prompt="ß"), Style(name="Ink")]
        assert words in file.read_bytes().decode("utf-8-sig")
    file.write_bytes(b"name,prompt,negative_prompt\r\n\x81\xe9,a,\r\n")  # 81 is no letter of Windows.
    assert notebook.styles() == [Style(name="\x81é", prompt="a")]


def test_what_another_program_writes_meanwhile_is_kept(notebook, tmp_path, monkeypatch):
    other = Notebook(tmp_path / "styles.csv", tmp_path / "other.json")
    read, times = notebook.styles, []

    def meanwhile():
        found = read()
        if not times:
            times.append(1)
            text = "name,prompt,negative_prompt\r\n" + "".join(
                f"{one.name},,\r\n" for one in [*found, Style(name="A1111")]
            )
            (tmp_path / "styles.csv").write_text(text)
        return found

    other.keep_style(Style(name="Oil"))
    monkeypatch.setattr(notebook, "styles", meanwhile)
    notebook.keep_style(Style(name="Ink"))
    assert [one.name for one in other.styles()] == ["Oil", "A1111", "Ink"]
    assert {path.name for path in tmp_path.iterdir()} == {"styles.csv"}


def test_two_servers_that_write_styles_at_once_lose_none(tmp_path):
    ours = [Notebook(tmp_path / "styles.csv", tmp_path / f"{number}.json") for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: ours[number % 4].keep_style(Style(name=f"style {number}")), range(12)))
    assert len(ours[0].styles()) == 12
    with held(tmp_path / ".styles.csv.lock"), pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "_PATIENCE", 0.05)
        with pytest.raises(StoreError, match="another server writes it"):
            ours[0].keep_style(Style(name="more"))


def test_presets_need_no_folder_of_styles(tmp_path):
    notebook = Notebook(tmp_path / "missing" / "styles.csv", tmp_path / "presets.json")
    notebook.keep_preset(Preset(name="mine", form={"steps": 3}))
    assert notebook.presets() == [Preset(name="mine", form={"steps": 3})]
    with pytest.raises(StoreError, match="styles.csv: can't be written"):
        notebook.keep_style(Style(name="Ink"))
