"""The command line: what it prints, and how it exits."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import sortition
from sortition import cli
from sortition.grammars.table import Table
from sortition.integrations import extract as extract_module
from sortition.integrations import generation

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Work in an empty folder with a schema and three documents, one of which will fail."""
    monkeypatch.setitem(generation.ENGINES, "echo", "engines:Echo")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    Path("schema.json").write_text(json.dumps(SCHEMA))
    Path("prompt.txt").write_text("{document}")
    lines = [{"text": '{"n": 1}'}, {"text": '{"n": 2}'}, {"text": '{"n": "x"}', "id": "third"}]
    Path("in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    Path("good.jsonl").write_text(json.dumps(lines[0]))


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(cli.app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def run_extract(*arguments: str, documents: str = "in.jsonl") -> Result:
    """`sortition extract` with an engine that repeats the documents; later options win."""
    options = f"--schema schema.json --input {documents} --output out.jsonl --engine echo --prompt prompt.txt"
    return run("extract", *options.split(), *arguments)


def test_version() -> None:
    assert run("--version").output == f"sortition {sortition.__version__}\n"


def test_help_names_the_commands() -> None:
    assert all(command in run("--help").output for command in ("extract", "compile", "show"))


def test_extract_takes_keys_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    # The grammar judges where no validator is installed.
    monkeypatch.setattr(extract_module, "validator", lambda *_: None)
    properties = {"a": {"type": "integer"}, "b": {"type": "integer"}}
    Path("schema.json").write_text(json.dumps({"type": "object", "properties": properties}))
    Path("keys.jsonl").write_text(json.dumps({"text": '{"b": 1, "a": 2}'}))
    options = "--overwrite", "--quiet"
    assert run_extract(*options, documents="keys.jsonl").exit_code == 1
    assert run_extract(*options, "--any-order", documents="keys.jsonl").exit_code == 0


def test_extract_can_ignore_formats() -> None:
    Path("schema.json").write_text('{"type": "string", "format": "date"}')
    Path("day.jsonl").write_text(json.dumps({"text": '"today"'}))
    options = "--overwrite", "--quiet"
    assert run_extract(*options, documents="day.jsonl").exit_code == 1
    assert run_extract(*options, "--formats", "annotate", documents="day.jsonl").exit_code == 0


def test_extract_judges_by_what_the_model_is_not_held_to() -> None:
    Path("schema.json").write_text('{"type": "array", "items": {"type": "string"}, "uniqueItems": true}')
    lines = [{"text": '["a"]'}, {"text": '["a", "a"]'}]
    Path("sets.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run_extract(documents="sets.jsonl").exit_code == 2
    result = run_extract("--ignore", "uniqueItems", documents="sets.jsonl")
    assert result.exit_code == 1
    assert "warning: 'uniqueItems' (at the root) is ignored" in result.stderr
    records = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [record["status"] for record in records] == ["ok", "invalid"]
    assert "has non-unique elements" in records[1]["error"]


def test_extract_writes_records_and_a_summary() -> None:
    result = run_extract()
    assert result.exit_code == 1
    records = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [record["status"] for record in records] == ["ok", "ok", "invalid"]
    assert list(records[0]) == [
        *("id", "index", "value", "text", "status", "error"),
        *("prompt_tokens", "completion_tokens", "seconds"),
    ]
    assert re.search(r"documents +3 *\n +ok +2 *\n +invalid +1 *\n", result.stdout)
    assert "third: invalid: $.n: 'x' is not of type 'integer'" in result.stdout
    again = run_extract()
    assert again.exit_code == 1
    assert re.search(r"from an earlier run +3 *\n", again.stdout)


def test_extract_exits_0_when_all_is_well() -> None:
    assert run_extract(documents="good.jsonl").exit_code == 0


def test_extract_warns_of_misspelt_keywords() -> None:
    Path("schema.json").write_text(json.dumps({**SCHEMA, "minPropertie": 1}))
    result = run_extract(documents="good.jsonl")
    assert result.exit_code == 0
    assert re.search(r"^warning: .*minProperties", result.stderr, re.MULTILINE)


def test_extract_can_be_quiet() -> None:
    result = run_extract("--quiet", documents="good.jsonl")
    assert (result.exit_code, result.output) == (0, "")


def test_extract_can_begin_anew() -> None:
    run_extract(documents="good.jsonl")
    result = run_extract("--overwrite", "--max-tokens", "9", "--batch-size", "2", "--unconstrained")
    assert result.exit_code == 1
    assert len(Path("out.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--schema missing.json", "error: cannot read missing.json: No such file or directory"),
        ("--schema in.jsonl", r"error: in.jsonl is not JSON: Extra data \(line 2, column 1\)"),
        ("--schema typo.json", "error: at .*'type'"),
        ("--schema remote.json", "error: at .*ref"),
        ("--input missing.jsonl", "error: cannot read missing.jsonl: No such file or directory"),
        ("--input bad.jsonl", r"error: bad.jsonl line 2: not JSON: .*\(column \d+\)"),
        ("--input empty", "error: empty holds no document"),
        ("--text-field body", "error: in.jsonl line 1: no field 'body'; its fields: 'text'"),
        ("--engine vlm", "error: there is no engine 'vlm'; there is: hf"),
        ("--model ./a/b/c", "error: there is no folder a/b/c$"),
        ("--model o/missing", "error: there is no folder o/missing; if .* Hub, .*: hf download o/missing"),
        ("--model in.jsonl", "error: in.jsonl is a file; give the folder that it is in"),
        ("--prompt schema.json", r"error: the prompt template has no \{document\}"),
        ("--output missing/out.jsonl", "error: cannot write missing/out.jsonl: No such file or directory"),
        ("--output schema.json", "error: the output schema.json lies in what is read, schema.json"),
        ("--output typo.json", "error: typo.json holds something else than records of a run"),
        ("--whitespace (", "error: "),
    ],
)
def test_what_cannot_be_used_is_told_in_one_line_before_a_model_loads(
    monkeypatch: pytest.MonkeyPatch, arguments: str, message: str
) -> None:
    monkeypatch.setattr(extract_module, "load_engine", lambda *_: pytest.fail("a model was loaded"))
    Path("typo.json").write_text('{"type": "strin"}')
    Path("remote.json").write_text('{"$ref": "https://example.org/schema"}')
    Path("bad.jsonl").write_text('{"text": "a"}\n{"text": }\n')
    Path("empty").mkdir()
    result = run_extract(*arguments.split())
    assert result.exit_code == 2
    assert result.stdout == ""
    assert re.match(message, result.stderr)
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", ["--max-tokens 0", "--batch-size x", "--no-such-option"])
def test_wrong_options_exit_2(arguments: str) -> None:
    assert run_extract(*arguments.split()).exit_code == 2


def test_other_settings_are_refused() -> None:
    run_extract()
    result = run_extract("--max-tokens", "7")
    assert result.exit_code == 2
    assert "begun with other settings (max_tokens was 512, now 7)" in result.stderr


def test_a_fault_of_the_program_exits_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "app", lambda: 1 // 0)
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    assert exit_.value.code == 3
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_an_interrupted_run_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(extract_module, "load_engine", interrupt)
    result = run_extract()
    assert result.exit_code == 130
    assert "without --overwrite" in result.stderr


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    pytest.importorskip("transformers")
    import tiny_model

    return str(tiny_model.build(tmp_path_factory.mktemp("model")))


def test_compile_says_what_a_schema_costs(tokenizer: str) -> None:
    Path("typo.json").write_text(json.dumps({**SCHEMA, "minPropertie": 1}))
    Path("good.json").write_text('{"n": 1}\n')
    Path("bad.json").write_text('{"n": "x"}\n')
    Path("half.json").write_text('{"n": 1')
    result = run(
        "compile", "schema.json", "--tokenizer", tokenizer, "-o", "schema.table", "--instance", "good.json"
    )
    assert result.exit_code == 0
    assert "states" in result.stdout
    assert "good.json: accepted" in result.stdout
    assert len(Table.load("schema.table")) > 0
    result = run(
        "compile", "typo.json", "--tokenizer", tokenizer, "--instance", "bad.json", "--instance", "half.json"
    )
    assert result.exit_code == 1
    assert "warning: " in result.stdout
    assert "minProperties" in result.stdout
    assert "bad.json: refused at byte 6: '\"' after '{\"n\": '" in result.stdout
    assert "half.json: refused: it may not end there" in result.stdout


def test_compile_says_what_is_refused_and_why(tokenizer: str) -> None:
    Path("schema.json").write_text('{"properties": {"a/b": {"$ref": "https://example.org/x"}}}')
    result = run("compile", "schema.json", "--tokenizer", tokenizer)
    assert result.exit_code == 2
    assert "/properties/a~1b" in result.stderr
    assert "$ref" in result.stderr


def test_show_prints_an_automaton_and_the_eligible_tokens(tokenizer: str) -> None:
    result = run("show", "yes|no", "--tokenizer", tokenizer)
    assert result.exit_code == 0
    assert "0 -> " in result.stdout
    assert "after '' the text may not end" in result.stdout
    assert re.search(r"2 of 25\d tokens are eligible:\n +\d+  'n'\n +\d+  'y'\n$", result.stdout)
    result = run("show", "yes|no", "--tokenizer", tokenizer, "--prefix", "no")
    assert "after 'no' the text may end" in result.stdout
    result = run("show", "yes|no", "--tokenizer", tokenizer, "--prefix", os.fsdecode(b"\xff"))
    assert result.exit_code == 1 and "refused at byte 0" in result.output
    result = run("show", "yes|no", "--tokenizer", tokenizer, "--prefix", "nö")
    assert result.exit_code == 1
    assert "refused at byte 1" in result.stdout
    result = run("show", "--schema", "schema.json", "--tokenizer", tokenizer, "--prefix", '{"n": ')
    assert "'7'" in result.stdout
    result = run("show", "[^x]", "--tokenizer", tokenizer, "--limit", "3")
    assert re.search(r"and \d+ more\n$", result.stdout)


@pytest.mark.parametrize(
    ("options", "prefix", "tokens"),
    [
        ("", '{"', "b"),
        ("--any-order", '{"', "bd"),
        ("--whitespace compact", '{"b":', "1"),
        ("--formats annotate", '{"b": 1, "d": "', "x"),
        ("--ignore format --ignore const", '{"b": 2, "d": "', "x"),
    ],
)
def test_show_takes_the_options_of_schemas(tokenizer: str, options: str, prefix: str, tokens: str) -> None:
    properties = {"b": {"const": 1}, "d": {"type": "string", "format": "date"}}
    schema = {"type": "object", "properties": properties, "required": ["b", "d"]}
    Path("schema.json").write_text(json.dumps({**schema, "additionalProperties": False}))
    show = "show", "--schema", "schema.json", "--tokenizer", tokenizer, "--prefix", prefix, "--limit", "300"
    without, result = run(*show), run(*show, *options.split())
    assert result.exit_code == 0
    assert all(f"  {token!r}\n" in result.stdout for token in tokens)
    assert not options or result.stdout != without.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["show"],
        ["show", "a", "--schema", "schema.json"],
        ["show", "(a"],
        ["show", "a", "--any-order"],
        ["show", "a", "--ignore", "pattern"],
        ["show", "--schema", "schema.json", "--ignore", "properties"],
        ["show", "--schema", "schema.json", "--formats", "check"],
    ],
)
def test_show_refuses_what_it_cannot_use(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")


def test_a_tokenizer_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    result = run("show", "a", "--tokenizer", "missing")
    assert result.exit_code == 2
    assert "there is no folder missing" in result.stderr
    result = run("show", "a", "--tokenizer", str(tmp_path))
    assert result.exit_code == 2
    assert f"there is no tokenizer in {tmp_path}: " in result.stderr
    (tmp_path / "tokenizer.json").write_text("{")
    result = run("show", "a", "--tokenizer", str(tmp_path))
    assert result.exit_code == 2
    assert f"cannot load a tokenizer from {tmp_path}: " in result.stderr


def test_a_benchmark_without_its_files_is_refused() -> None:
    result = run("bench", "masks", "--cases", "no.gz", "--tokenizer", "no.model")
    assert (result.exit_code, result.stderr) == (2, "error: there is no file no.gz\n")


def test_the_package_runs_as_a_module() -> None:
    source = Path(__file__).parent.parent / "src"
    done = subprocess.run(
        [sys.executable, "-m", "sortition", "--version"],
        env={"PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"sortition {sortition.__version__}\n"
