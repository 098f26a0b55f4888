"""Extraction: documents in, records out, whatever happens in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import tiny_model

from sortition.grammars.errors import GrammarError
from sortition.integrations import extract as extract_module
from sortition.integrations import generation
from sortition.integrations.documents import Document, read_documents
from sortition.integrations.errors import InputError
from sortition.integrations.extract import Extraction, extract
from sortition.integrations.prompts import Template
from sortition.integrations.records import Journal, Record
from sortition.integrations.schemas import read_schema

pytest.importorskip("jsonschema")

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
DAY = {
    "type": "object",
    "properties": {
        "day": {"type": "string", "format": "date"},
        "kind": {"enum": ["ä", "b", None]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["day", "kind", "count"],
    "additionalProperties": False,
}


@pytest.fixture(autouse=True)
def _engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(generation.ENGINES, "echo", "engines:Echo")


def echo(documents: Any, schema: Any = NUMBER, **options: Any) -> Extraction:
    """What becomes of documents if the model repeats them."""
    return extract(documents, schema, engine="echo", prompt="{document}", progress=False, **options)


# Documents


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"text": "one", "id": "a"}\r\n\n'
        b'{"text": "two \xe2\x80\xa8 \xf0\x9f\x98\x80", "more": 1}\n  \n{"id": 7, "text": ""}'
    )
    assert read_documents(path) == [Document("a", "one"), Document(1, "two \u2028 😀"), Document(7, "")]


def test_fields_of_json_lines_have_the_names_that_are_given(tmp_path: Path) -> None:
    path = tmp_path / "in.ndjson"
    path.write_text('{"body": "one", "key": "a"}\n')
    assert read_documents(str(path), text_field="body", id_field="key") == [Document("a", "one")]


def test_text_file(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("Dear\nJohn")
    assert read_documents(tmp_path / "letter.txt") == [Document("letter.txt", "Dear\nJohn")]


def test_folder_is_read_in_the_order_of_paths(tmp_path: Path) -> None:
    for name in ("b.txt", "a.md", ".hidden", "sub/c.txt", ".git/d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert [document.id for document in read_documents(tmp_path)] == ["a.md", "b.txt", "sub/c.txt"]


def test_values_in_memory() -> None:
    documents = ["one", {"text": "two", "id": "x"}, Document("y", "three")]
    assert [document.id for document in read_documents(documents)] == [0, "x", "y"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"text": "a"}\n{"text": "b"\n', r"in\.jsonl line 2: not JSON: .*column"),
        (b'{"text": "a"}\n["b"]\n', "line 2: has to be an object with a field 'text', not an array"),
        (b'{"body": "a", "id": 1}', "line 1: no field 'text'; its fields: 'body', 'id'"),
        (b'{"text": 3}', "line 1: the field 'text' has to be a string, not a number"),
        (b'{"text": null}', "line 1: the field 'text' has to be a string, not null"),
        (b'{"text": "a", "id": true}', "the field 'id' has to be a string or an integer, not true or false"),
        (b'{"text": "a", "id": 1.5}', "the field 'id' has to be a string or an integer, not a number"),
        (
            b'{"text": "a \\ud83d"}',
            r"line 1: the field 'text' holds half of a surrogate pair \(character 2\)",
        ),
        (
            b'{"text": "a", "id": "x"}\n\n{"text": "b", "id": "x"}',
            r"line 3: the id 'x' is taken by .* line 1",
        ),
        (b'{"text": "\xff"}', r"in\.jsonl is not UTF-8 text \(byte 10\)"),
        (b"[" * 100_000, "line 1: nested too deeply"),
        (b"\n\n", "holds no document"),
        (b"", "holds no document"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_documents(path)


def test_links_to_files_and_folders_are_followed(tmp_path: Path) -> None:
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "folder"
    elsewhere.mkdir()
    folder.mkdir()
    (elsewhere / "b.txt").write_text("b")
    (folder / "a.txt").symlink_to(elsewhere / "b.txt")
    (folder / "sub").symlink_to(elsewhere)
    (folder / "same").symlink_to(elsewhere)
    assert [document.id for document in read_documents(folder)] == ["a.txt", "same/b.txt", "sub/b.txt"]


def test_no_file_of_a_folder_is_left_out_in_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("a")
    broken = tmp_path / "b.txt"
    broken.symlink_to(tmp_path / "missing.txt")
    with pytest.raises(InputError, match=r"cannot read .*b\.txt: No such file"):
        read_documents(tmp_path)
    broken.unlink()
    circle = tmp_path / "circle"
    circle.symlink_to(tmp_path)
    with pytest.raises(InputError, match=r"cannot read .*circle: it leads back to .*, which it lies in"):
        read_documents(tmp_path)
    circle.unlink()
    closed, look = tmp_path / "closed", Path.iterdir
    closed.mkdir()

    def refuse(path: Path) -> Iterator[Path]:
        if path == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return look(path)

    # Whoever runs the tests may be allowed everything.
    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(InputError, match=r"cannot read .*closed: Permission denied"):
        read_documents(tmp_path)


def test_a_place_that_cannot_be_looked_at_is_named(tmp_path: Path) -> None:
    name = tmp_path / ("long" * 100)
    with pytest.raises(InputError, match=r"cannot read .*: File name too long"):
        read_documents(name)
    with pytest.raises(InputError, match=r"cannot read .*: File name too long"):
        echo(["1"], model=name)
    with pytest.raises(InputError, match=r"cannot write .*: File name too long"):
        echo(["1"], output=name)


def test_bad_places_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no document"):
        read_documents(tmp_path)
    with pytest.raises(InputError, match=r"cannot read .*missing\.txt: No such file"):
        read_documents(tmp_path / "missing.txt")
    with pytest.raises(InputError, match="there is no document"):
        read_documents([])
    (tmp_path / "scan.pdf").write_bytes(b"%PDF\xe2")
    with pytest.raises(InputError, match=r"scan\.pdf is not UTF-8 text \(byte 4\)"):
        read_documents(tmp_path)


# Prompts


def test_braces_that_are_no_placeholders_mean_themselves() -> None:
    template = Template('{"a": {document}} {schema} {{}} {other}')
    assert template.fill("{schema}\\1", {"b": "é"}) == '{"a": {schema}\\1} {"b": "é"} {{}} {other}'


def test_a_prompt_without_the_document_is_refused() -> None:
    with pytest.raises(InputError, match=r"no \{document\}"):
        Template("Extract {schema}")


# Verdicts


@pytest.mark.parametrize(
    ("text", "status", "value", "error"),
    [
        ('{"n": 1}', "ok", {"n": 1}, None),
        ('{"n": 1}...', "ok", {"n": 1}, None),
        ('{"n": 1...', "truncated", None, "cut off after 7 tokens"),
        ('{"n": "1"}', "invalid", None, "$.n: '1' is not of type 'integer'"),
        ('{"n": 1', "invalid", None, "not JSON"),
        ('{"n": NaN}', "invalid", None, "NaN is not JSON"),
        ("[" * 100_000, "invalid", None, "nested too deeply"),
        (" \n", "error", None, "the document is empty"),
        ("!", "error", None, "too long"),
    ],
)
def test_verdicts(text: str, status: str, value: Any, error: str | None) -> None:
    record = echo([text]).records[0]
    assert (record.status, record.value) == (status, value)
    assert record.error is None if error is None else error in (record.error or "")
    assert record.text == (text.removesuffix("...") if status in ("truncated", "invalid") else None)


def test_a_number_that_was_cut_off_is_not_a_value() -> None:
    records = echo(["12", "12...", "true..."], True).records
    assert [(record.status, record.value) for record in records] == [
        ("ok", 12),
        ("truncated", None),
        ("ok", True),
    ]


def test_without_a_grammar_the_first_json_counts() -> None:
    texts = ['Sure! {"n": 1} and {"n": 2}', "none", '{"n": 1', '{"n": 1...', '{"n": []}', '{"n": 3}']
    records = echo(texts, constrained=False).records
    assert [record.status for record in records] == ["ok", "invalid", "invalid", "truncated", "invalid", "ok"]
    assert records[0].value == {"n": 1}


def test_without_jsonschema_the_grammar_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extract_module, "validator", lambda *_: None)
    assert [record.status for record in echo(['{"n": 1}', '{"n": "1"}']).records] == ["ok", "invalid"]
    with pytest.raises(InputError, match="pip install jsonschema"):
        echo(["1"], constrained=False)


@pytest.mark.parametrize("step", [0.01, 0.1, 1e-8])
def test_decimals_are_multiples_as_they_are_written(step: float) -> None:
    """Floats would say that 17.79 is not a multiple of 0.01."""
    texts = ["17.79", "19.99", "0.3", "0.7", "4.35", "1.005"]
    right = [str(value) for value in texts if Fraction(value) % Fraction(str(step)) == 0]
    records = echo(texts, {"type": "number", "multipleOf": step}, constrained=False).records
    assert [text for text, record in zip(texts, records, strict=True) if record.status == "ok"] == right


def test_only_a_regular_file_is_written() -> None:
    with pytest.raises(InputError, match="not a regular file"):
        echo(["1"], True, output="/dev/null")


def test_formats_are_checked() -> None:
    texts = ['"2023-02-28"', '"2023-02-29"']
    records = echo(texts, {"type": "string", "format": "date"}).records
    assert [record.status for record in records] == ["ok", "invalid"]


@pytest.mark.parametrize(("constrained", "judge"), [(True, True), (False, True), (True, False)])
def test_formats_can_be_ignored(monkeypatch: pytest.MonkeyPatch, constrained: bool, judge: bool) -> None:
    if not judge:
        # The grammar judges where no validator is installed.
        monkeypatch.setattr(extract_module, "validator", lambda *_: None)
    schema = {"type": "string", "format": "date"}
    records = echo(['"today"', "7"], schema, formats="annotate", constrained=constrained).records
    assert [record.status for record in records] == ["ok", "invalid"]


# Options


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"schema": "{"}, InputError, r"the schema is not JSON: .* \(line 1, column 2\)"),
        ({"schema": [1]}, InputError, "has to be an object, true or false"),
        ({"schema": {"type": "text"}}, ValueError, "type"),
        (
            {"schema": {1, 2}},
            InputError,
            "a set is not a JSON Schema: give a dict, JSON text or a pydantic class",
        ),
        ({"schema": list[int]}, InputError, r"pydantic\.TypeAdapter"),
        ({"schema": "invoice.json"}, InputError, "the schema itself, and a file is given as a Path"),
        ({"schema": {"type": "object", 1: 2}}, GrammarError, "the keys of a schema are strings"),
        ({"schema": {"enum": [object()]}}, GrammarError, "'enum': a object is not a JSON value"),
        ({"schema": {"$ref": "https://example.org/x.json"}}, GrammarError, "ref"),
        ({"formats": "check"}, GrammarError, "formats must be 'assert' or 'annotate', not 'check'"),
        (
            {"formats": "check", "constrained": False},
            InputError,
            "formats must be 'assert' or 'annotate', not 'check'",
        ),
        ({"ignore": "required"}, GrammarError, "ignore lists keywords"),
        ({"ignore": ["requird"], "constrained": False}, GrammarError, "did you mean 'required'"),
        ({"model": "no/such/folder"}, InputError, "there is no folder no/such/folder"),
        ({"max_tokens": 0}, InputError, "max_tokens is a whole number of at least 1, not 0"),
        ({"batch_size": -1}, InputError, "batch_size is a whole number of at least 1, not -1"),
        ({"max_tokens": "many"}, InputError, "max_tokens is a whole number of at least 1, not 'many'"),
        ({"documents": None}, InputError, "documents are a path, or texts or mappings, not NoneType"),
        ({"output": "no/such/folder/out.jsonl"}, InputError, "cannot write .*No such file"),
    ],
)
def test_options_that_cannot_be_used_are_refused(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    monkeypatch.setattr(extract_module, "load_engine", lambda *_: pytest.fail("a model was loaded"))
    with pytest.raises(error, match=message):
        echo(**{"documents": ["1"], **options})


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(InputError, match="there is no engine 'vlm'; there is: hf"):
        extract(["1"], True, engine="vlm")


def test_schemas_come_in_several_forms(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text('{"type": "null"}')
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Point", x=(int, ...))
    assert read_schema(tmp_path / "schema.json") == read_schema('{"type": "null"}') == {"type": "null"}
    assert read_schema(model)["required"] == ["x"]
    assert echo(['{"x": 1}'], model).ok


# Output and resumption


def numbers(count: int) -> list[dict[str, str]]:
    return [{"id": f"d{n}", "text": json.dumps({"n": n})} for n in range(count)]


def read(path: Path) -> list[Record]:
    return [Record.read(line) for line in path.read_bytes().splitlines()]


def test_the_output_holds_the_records_in_order(tmp_path: Path) -> None:
    documents = [{"id": "ü", "text": '{"n": 1, "s": "\u2028😀"}'}, {"text": "?"}, {"id": 9, "text": "!"}]
    extraction = echo(documents, output=tmp_path / "out.jsonl")
    assert tuple(read(tmp_path / "out.jsonl")) == extraction.records
    assert [(record.index, record.id) for record in extraction.records] == [(0, "ü"), (1, 1), (2, 9)]
    assert "\u2028😀" in (tmp_path / "out.jsonl").read_text()
    assert not extraction.ok
    assert dict(extraction.counts) == {"ok": 1, "invalid": 1, "error": 1}
    assert extraction.tokens_per_second == pytest.approx(len(documents[0]["text"]) + 1)


def test_a_finished_run_has_nothing_left_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = echo(numbers(3), output=tmp_path / "out.jsonl")
    monkeypatch.setattr(extract_module, "load_engine", lambda *_: pytest.fail("a model was loaded"))
    again = echo(numbers(3), output=tmp_path / "out.jsonl")
    assert again.records == first.records
    assert (first.resumed, again.resumed) == (0, 3)


@pytest.mark.parametrize("cut", [1, 20, -1])
def test_a_torn_last_line_is_written_again(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "out.jsonl"
    expected = echo(numbers(5), output=path).records
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]) + lines[3][:cut])
    again = echo(numbers(5), output=path)
    assert again.resumed == 3
    assert again.records == expected
    assert tuple(read(path)) == expected


def test_a_run_without_a_whole_record_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    echo(numbers(2), output=path)
    path.write_bytes(path.read_bytes()[:10])
    assert echo(numbers(3), {"type": "object"}, output=path).resumed == 0


def test_documents_may_be_added_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    echo(numbers(2), output=path)
    assert echo(numbers(4), output=path).resumed == 2
    assert [record.value["n"] for record in read(path)] == [0, 1, 2, 3]
    with pytest.raises(InputError, match="begun with other documents"):
        echo(numbers(3), output=path)


@pytest.mark.parametrize(
    "change",
    [
        {"schema": {"type": "object"}},
        {"max_tokens": 7},
        {"prompt": "{document} "},
        {"whitespace": "compact"},
        {"formats": "annotate"},
        {"any_order": True},
        {"ignore": ["required"]},
        {"chat": False},
        {"constrained": False},
    ],
    ids=lambda change: next(iter(change)),
)
def test_other_settings_do_not_continue_a_run(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "out.jsonl"
    settings = {"schema": NUMBER, "engine": "echo", "prompt": "{document}", "progress": False}
    extract(numbers(2), **settings, output=path)
    before = path.read_bytes()
    with pytest.raises(InputError, match=rf"other settings \({next(iter(change))} was .*, now "):
        extract(numbers(3), **{**settings, **change}, output=path)
    assert path.read_bytes() == before
    assert extract(numbers(3), **{**settings, **change}, output=path, overwrite=True).resumed == 0
    assert len(read(path)) == 3


def test_a_batch_of_another_size_continues_a_run(tmp_path: Path) -> None:
    echo(numbers(2), output=tmp_path / "out.jsonl")
    assert echo(numbers(3), output=tmp_path / "out.jsonl", batch_size=1).resumed == 2


def test_other_documents_do_not_continue_a_run(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    echo(numbers(2), output=path)
    changed = numbers(2)
    changed[0]["text"] += " "
    with pytest.raises(InputError, match="other documents"):
        echo(changed, output=path)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_run_does_not_write_over_what_it_reads(tmp_path: Path, overwrite: bool) -> None:
    path, schema = tmp_path / "in.jsonl", tmp_path / "schema.json"
    path.write_text('{"text": "1"}')
    schema.write_text("true")
    for documents, output in ((path, path), (tmp_path, tmp_path / "out.jsonl"), (path, schema)):
        with pytest.raises(InputError, match="lies in what is read"):
            echo(documents, schema, output=output, overwrite=overwrite)
    assert path.read_text() == '{"text": "1"}'


@pytest.mark.parametrize("content", [b"precious", b'{"my": "data"}\n'])
def test_another_file_is_not_touched(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError, match="holds something else"):
        echo(numbers(1), output=path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{}\n", "line 3: not a record of this run"),
        (b"\x00\x00\n", "line 3: not a record of this run"),
        (b"first", "line 3: not the record of document 2"),
    ],
)
def test_a_damaged_output_is_refused(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "out.jsonl"
    echo(numbers(2), output=path)
    whole = path.read_bytes()
    path.write_bytes(whole + (whole.splitlines(keepends=True)[0] if line == b"first" else line))
    with pytest.raises(InputError, match=message):
        echo(numbers(3), output=path)


def test_a_run_whose_settings_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    """As in a folder that is full, or in which only the output itself may be written."""
    path, beside = tmp_path / "out.jsonl", tmp_path / "out.jsonl.run"
    (tmp_path / "out.jsonl.run.new").mkdir()
    with pytest.raises(InputError, match=r"cannot write .*out\.jsonl\.run: Is a directory"):
        echo(["1"], output=path)
    (tmp_path / "out.jsonl.run.new").rmdir()
    echo(['{"n": 1}'], output=path)
    beside.unlink()
    beside.mkdir()
    with pytest.raises(InputError, match=r"cannot read .*out\.jsonl\.run: Is a directory"):
        echo(['{"n": 1}'], output=path)
    assert [record["id"] for record in map(json.loads, path.read_text().splitlines())] == [0]


def test_what_could_not_be_kept_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"cannot write .*out\.jsonl\.run: No space left on device"):
        echo(["1"], output=tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl.run.new").exists()


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    documents = read_documents(numbers(1))
    with (
        Journal(tmp_path / "out.jsonl", {}, documents),
        pytest.raises(InputError, match="another run is writing"),
    ):
        Journal(tmp_path / "out.jsonl", {}, documents)
    Journal(tmp_path / "out.jsonl", {}, documents).__exit__()


KILLED = """
import sys
from pathlib import Path
from sortition.integrations import generation
from sortition.integrations.extract import extract
generation.ENGINES["slow"] = "engines:Slow"
extract(Path(sys.argv[1]), Path(sys.argv[2]), output=sys.argv[3],
        engine="slow", prompt="{document}", progress=False)
"""


def test_a_killed_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """Killed several times: no record is lost and none is there twice."""
    documents, schema, output = (tmp_path / name for name in ("in.jsonl", "schema.json", "out.jsonl"))
    documents.write_text("".join(json.dumps(document) + "\n" for document in numbers(60)))
    schema.write_text(json.dumps(NUMBER))
    command = [sys.executable, "-c", KILLED, *map(str, (documents, schema, output))]
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here.parent / "src"), str(here)])}
    seen = 0
    for _ in range(3):
        run = subprocess.Popen(command, env=environment)
        try:
            deadline = time.monotonic() + 60
            while not output.exists() or output.read_bytes().count(b"\n") < seen + 4:
                assert run.poll() is None, "it ended before it could be killed"
                assert time.monotonic() < deadline
                time.sleep(0.005)
        finally:
            run.kill()
        assert run.wait() == -signal.SIGKILL
        seen = output.read_bytes().count(b"\n")
        # As if the kill had come in the middle of a write.
        with output.open("ab") as file:
            file.write(b'{"id": "d')
    assert subprocess.run(command, env=environment, check=False).returncode == 0
    records = read(output)
    assert [(record.index, record.id) for record in records] == [(n, f"d{n}") for n in range(60)]
    assert [record.value for record in records] == [{"n": n} for n in range(60)]


# A model of random weights


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers")
    return tiny_model.build(tmp_path_factory.mktemp("model"))


def test_a_model_that_writes_nonsense_writes_valid_nonsense(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["a", "a longer one", "ü" * 20, "b", " "]
    extraction = extract(texts, DAY, model=model, prompt="{document}", batch_size=3, progress=False)
    assert capsys.readouterr() == ("", "")
    assert [record.status for record in extraction.records] == ["ok"] * 4 + ["error"]
    assert [record.prompt_tokens for record in extraction.records[:4]] == [1, 12, 40, 1]
    for record in extraction.records[:4]:
        assert set(record.value) == set(DAY["properties"])
        # One token a byte, and the end.
        assert record.completion_tokens > len(json.dumps(record.value, separators=(",", ":")).encode())
    assert extraction.tokens_per_second > 0


def test_what_the_token_limit_cuts_off_is_truncated(model: Path) -> None:
    extraction = extract(["a", "b"], DAY, model=model, prompt="{document}", max_tokens=12, progress=False)
    for record in extraction.records:
        assert (record.status, record.value, record.completion_tokens) == ("truncated", None, 12)
        assert record.text is not None
        assert len(record.text.encode()) == 12
        assert record.text.lstrip().startswith("{")


def test_a_prompt_that_does_not_fit_is_an_error_of_its_own(model: Path) -> None:
    texts = ["a", "x" * (tiny_model.CONTEXT - 119), "b"]
    extraction = extract(texts, DAY, model=model, prompt="{document}", max_tokens=120, progress=False)
    assert [record.status for record in extraction.records] == ["ok", "error", "ok"]
    assert "do not fit into the model's 600" in (extraction.records[1].error or "")


def test_a_free_model_writes_what_it_likes(model: Path) -> None:
    extraction = extract(
        ["a"], DAY, model=model, prompt="{document}", max_tokens=20, constrained=False, progress=False
    )
    assert extraction.records[0].status in ("invalid", "truncated")


def test_the_chat_template_is_used_where_there_is_one(model: Path, tmp_path: Path) -> None:
    chatty = tmp_path / "chatty"
    chatty.mkdir()
    for file in model.iterdir():
        (chatty / file.name).write_bytes(file.read_bytes())
    template = "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}"
    (chatty / "chat_template.jinja").write_text(template)
    for chat, tokens in ((True, len("[user]abc")), (False, 3)):
        record = extract(["abc"], DAY, model=chatty, prompt="{document}", chat=chat, progress=False).records[
            0
        ]
        assert record.prompt_tokens == tokens


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(InputError, match=r"there is no model in .*: it has no config\.json"):
        extract(["a"], DAY, model=tmp_path, progress=False)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match="cannot load the model in"):
        extract(["a"], DAY, model=tmp_path, progress=False)


@pytest.mark.parametrize("device", ["foo", "cuda:9", "cuda:x"])
def test_a_device_that_is_none_is_refused_before_a_model_loads(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setattr(extract_module, "load_engine", lambda *_: pytest.fail("a model was loaded"))
    with pytest.raises(InputError, match=f"there is no device '{device}' .*; there is: cpu"):
        extract(["a"], DAY, device=device, progress=False)


# The real model


def test_the_embedded_model_reads_a_bulletin(tmp_path: Path) -> None:
    from sortition.integrations.smollm2 import embedded_model

    pytest.importorskip("transformers")
    try:
        embedded_model()
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    weather = Path(__file__).parent.parent / "demo" / "weather"
    texts = [document.text for document in read_documents(weather / "documents")[:2]]
    extraction = extract(
        texts,
        weather / "schema.json",
        prompt=weather / "prompt.txt",
        output=tmp_path / "out.jsonl",
        max_tokens=100,
        progress=False,
    )
    assert extraction.ok
    assert extraction.records[0].value["high_temperature"] == 41
