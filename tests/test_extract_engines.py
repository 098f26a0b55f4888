"""Extraction by other engines: a server with OpenAI's interface, and vLLM in this process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sortition.integrations import openai_server
from sortition.integrations.documents import read_documents
from sortition.integrations.errors import InputError
from sortition.integrations.extract import Extraction, extract
from sortition.integrations.openai_engine import GONE
from sortition.integrations.records import Record

pytest.importorskip("jsonschema")

HERE = Path(__file__).parent
WEATHER = HERE.parent / "demo" / "weather"
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


# Our client: a small server says what it is told to


class Stub(ThreadingHTTPServer):
    """Repeats the prompt. A prompt that begins with a name of `troubles` brings that about first."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"
        self.bodies: list[dict[str, Any]] = []
        self.seen: Counter[str] = Counter()
        self.keys: set[str | None] = set()
        self.has_processor = False
        self.down = False
        self.at_once = self.most_at_once = 0
        self.lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    server: Stub
    open = False

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.answer(200, {"data": [{"id": "first"}, {"id": "second"}]} if self.path == "/v1/models" else {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        stub = self.server
        chat = self.path == "/v1/chat/completions"
        prompt = body["messages"][0]["content"] if chat else body["prompt"]
        with stub.lock:
            stub.bodies.append(body)
            stub.seen[prompt] += 1
            stub.keys.add(self.headers.get("Authorization"))
            stub.at_once += 1
            stub.most_at_once = max(stub.most_at_once, stub.at_once)
            self.open = True
        try:
            self.react(prompt, body, chat, stub.seen[prompt])
        finally:
            self.leave()

    def leave(self) -> None:
        """The request is over, once: before its answer is sent, because the next one may follow at once."""
        with self.server.lock:
            self.server.at_once -= self.open
            self.open = False

    def react(self, prompt: str, body: dict[str, Any], chat: bool, attempt: int) -> None:
        if self.server.down:
            return self.answer(503, {"detail": "down"})
        if body.get("vllm_xargs") == {"sortition": "{}"}:
            if self.server.has_processor:
                return self.answer(400, {"error": {"message": "sortition: exactly one of json_schema, ..."}})
            return self.answer(400, {"error": {"message": "Unknown parameter: 'vllm_xargs'."}})
        trouble, _, text = prompt.partition("|")
        match trouble:
            case "busy" if attempt <= 2:
                return self.answer(429, {"error": {"message": "busy"}}, {"Retry-After": "0"})
            case "broken" if attempt <= 2:
                return self.answer(502, b"<html>Bad gateway</html>")
            case "cut" if attempt <= 2:
                self.close_connection = True
                return self.connection.shutdown(2)
            case "never":
                return self.answer(500, {"error": {"message": "never again"}})
            case "long":
                return self.answer(400, {"error": {"message": "maximum context length is 9"}})
            case "nonsense":
                return self.answer(200, {"hello": "you"})
            case "no json":
                return self.answer(200, b"hello")
            case "key":
                return self.answer(401, {"error": {"message": "who are you?"}})
            case "slow":
                time.sleep(0.2)
        reason = "length" if text.endswith("...") else "stop"
        written = text.removesuffix("...")
        choice = {"message": {"content": written}} if chat else {"text": written}
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(written)}
        self.answer(200, {"choices": [{**choice, "finish_reason": reason}], "usage": usage})

    def answer(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.leave()
        self.send_response(status)
        for name, header in {**(headers or {}), "Content-Length": str(len(content))}.items():
            self.send_header(name, header)
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    monkeypatch.setattr(openai_server, "PAUSES", (0.001, 0.001, 0.001))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with Stub() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(stub: Stub, documents: Any, **options: Any) -> Extraction:
    settings = {"schema": NUMBER, "prompt": "{document}", "base_url": stub.url, "progress": False, **options}
    return extract(documents, engine="openai", **settings)


def prompts(stub: Stub) -> list[dict[str, Any]]:
    """What was asked, without the probe."""
    return [body for body in stub.bodies if body.get("vllm_xargs") != {"sortition": "{}"}]


def test_records_are_in_order_and_made_at_the_same_time(stub: Stub, tmp_path: Path) -> None:
    texts = [f'{"slow" if n % 5 == 0 else ""}|{{"n": {n}}}' for n in range(40)]
    extraction = ask(stub, texts, output=tmp_path / "out.jsonl", batch_size=4)
    assert [record.value for record in extraction.records] == [{"n": n} for n in range(40)]
    assert 2 <= stub.most_at_once <= 4
    assert extraction.records[3].prompt_tokens == len(texts[3])
    assert extraction.records[3].completion_tokens == len('{"n": 3}')


def test_what_may_pass_is_tried_again(stub: Stub) -> None:
    texts = ['busy|{"n": 1}', 'broken|{"n": 2}', 'cut|{"n": 3}']
    assert [record.value for record in ask(stub, texts).records] == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert all(stub.seen[text] == 3 for text in texts)


def test_what_does_not_pass_is_an_error_of_its_document(stub: Stub) -> None:
    texts = ["never|", '|{"n": 1}', "long|", "nonsense|", "no json|", '|{"n": 1...', "|?", "never|again"]
    records = ask(stub, texts).records
    assert [record.status for record in records] == [
        *("error", "ok", "error", "error", "error", "truncated", "invalid", "error")
    ]
    errors = [record.error or "" for record in records]
    assert errors[0] == f"no answer from {stub.url}: HTTP 500: never again"
    assert errors[2] == "HTTP 400: maximum context length is 9"
    assert "no completion: {'hello': 'you'}" in errors[3]
    assert "not JSON" in errors[4]
    assert stub.seen["never|"] == 1 + len(openai_server.PAUSES)
    assert stub.seen["long|"] == 1


def test_what_is_wrong_with_all_requests_is_raised(stub: Stub) -> None:
    with pytest.raises(InputError, match=r"who are you.*OPENAI_API_KEY"):
        ask(stub, ["key|"])
    with pytest.raises(InputError, match=r"no answer from http://127\.0\.0\.1:9/v1"):
        ask(stub, ["|1"], base_url="http://127.0.0.1:9/v1")


def test_a_server_that_went_away_costs_no_record(stub: Stub, tmp_path: Path) -> None:
    """Its documents are asked for again by the next run, and those before them are kept."""
    path = tmp_path / "out.jsonl"
    texts = ['|{"n": 0}', '|{"n": 1}', *(f'never|{{"n": {n}}}' for n in range(2, GONE + 6))]
    with pytest.raises(InputError, match=f"never again, {GONE} documents in a row"):
        ask(stub, texts, output=path)
    assert [json.loads(line)["index"] for line in path.read_text().splitlines()] == [0, 1]


def test_a_server_that_is_down_is_not_asked_for_documents(stub: Stub) -> None:
    stub.down = True
    with pytest.raises(InputError, match="HTTP 503: down"):
        ask(stub, ["|1"])


@pytest.mark.parametrize("has_processor", [True, False])
def test_a_server_is_asked_how_it_takes_a_schema(stub: Stub, has_processor: bool) -> None:
    stub.has_processor = has_processor
    ask(stub, ['|{"n": 1}', '|{"n": 2}'])
    assert len(stub.bodies) == 3
    for body in prompts(stub):
        if has_processor:
            assert json.loads(body["vllm_xargs"]["sortition"]) == {
                "json_schema": NUMBER,
                "whitespace": "default",
                "formats": "assert",
            }
            assert "response_format" not in body
        else:
            assert body["response_format"]["json_schema"]["schema"] == NUMBER
            assert "vllm_xargs" not in body


GRAMMAR: dict[str, Any] = {"any_order": True, "ignore": ["minimum", "required"]}


def test_what_is_chosen_is_not_asked_for(stub: Stub) -> None:
    ask(stub, ['|{"n": 1}'], server="sortition", served_model="mine", max_tokens=7, **GRAMMAR)
    (body,) = stub.bodies
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("mine", 0, 7)
    assert list(body["vllm_xargs"]) == ["sortition"]
    fields = json.loads(body["vllm_xargs"]["sortition"])
    assert {name: fields[name] for name in GRAMMAR} == GRAMMAR


def test_without_a_grammar_none_is_sent(stub: Stub) -> None:
    assert ask(stub, ['|{"n": 1}'], constrained=False, chat=False).ok
    assert stub.bodies == [{"model": "first", "temperature": 0, "max_tokens": 512, "prompt": '|{"n": 1}'}]


def test_the_key_is_that_of_the_environment(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(stub, ['|{"n": 1}'])
    assert stub.keys == {None}
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    ask(stub, ['|{"n": 1}'])
    assert stub.keys == {None, "Bearer secret"}


def test_another_model_does_not_continue_a_run(stub: Stub, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    texts = ['|{"n": 1}', '|{"n": 2}']
    ask(stub, texts[:1], output=path)
    with pytest.raises(InputError, match='model was "first", now "second"'):
        ask(stub, texts, output=path, served_model="second")
    with pytest.raises(InputError, match='server was "response_format", now "sortition"'):
        ask(stub, texts, output=path, server="sortition")
    assert "secret" not in path.with_name("out.jsonl.run").read_text()
    assert ask(stub, texts, output=path).resumed == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base_url": None}, "needs base_url"),
        ({"base_url": "localhost:8000"}, "base_url is the URL of a server"),
        ({"server": "vllm"}, "server is sortition or response_format, not 'vllm'"),
        ({"model": "."}, "model is not for the engine 'openai', but for hf and vllm"),
        ({"device": "cpu"}, "device is not for the engine 'openai', but for hf"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size is not for the engine 'openai', but for vllm"),
        ({"whitespace": "compact"}, "whitespace is only for servers that run our processor"),
        ({"formats": "annotate"}, "formats is only for servers that run our processor"),
        ({"any_order": True}, "any_order is only for servers that run our processor"),
        ({"ignore": ["format"]}, "ignore is only for servers that run our processor"),
    ],
)
def test_choices_that_do_not_fit_are_refused(stub: Stub, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ask(stub, ["|1"], **options)


def test_choices_of_a_server_are_not_for_other_engines() -> None:
    with pytest.raises(InputError, match="base_url is not for the engine 'hf', but for openai"):
        extract(["1"], NUMBER, base_url="http://localhost/v1")
    with pytest.raises(InputError, match="tensor_parallel_size has to be at least 1, not 0"):
        extract(["1"], NUMBER, engine="vllm", tensor_parallel_size=0)


# The real thing


@pytest.fixture(scope="module")
def model() -> Path:
    from vllm_reports import needs_vllm

    from sortition.integrations.smollm2 import embedded_model

    needs_vllm()
    try:
        return embedded_model()
    except FileNotFoundError as missing:
        pytest.skip(str(missing))


@pytest.fixture
def bulletins(tmp_path: Path) -> list[str]:
    """A command line without an engine, over three bulletins."""
    texts = [document.text for document in read_documents(WEATHER / "documents")[:3]]
    documents = tmp_path / "in.jsonl"
    documents.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    options = {
        "--schema": str(WEATHER / "schema.json"),
        "--input": str(documents),
        "--output": str(tmp_path / "out.jsonl"),
        "--prompt": str(WEATHER / "prompt.txt"),
        "--max-tokens": "100",
    }
    words = [word for option in options.items() for word in option]
    return [sys.executable, "-m", "sortition", "extract", "--quiet", *words]


def read(path: Path) -> list[Record]:
    return [Record.read(line) for line in path.read_bytes().splitlines()]


def test_vllm_s_server_by_both_ways(model: Path, bulletins: list[str], tmp_path: Path) -> None:
    from vllm_reports import environment
    from vllm_server import serve

    with serve(model, tmp_path, max_model_len="1024") as url:
        for options, server in (([], "sortition"), (["--server", "response_format"], "response_format")):
            command = [*bulletins, "--engine", "openai", "--base-url", f"{url}/v1", "--overwrite", *options]
            done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            records = read(tmp_path / "out.jsonl")
            assert [record.status for record in records] == ["ok"] * 3
            assert records[0].value["high_temperature"] == 41
            assert records[0].completion_tokens > 30
            settings = json.loads((tmp_path / "out.jsonl.run").read_text())["settings"]
            assert (settings["server"], settings["model"]) == (server, str(model))
        with (tmp_path / "in.jsonl").open("a") as documents:
            documents.write(json.dumps({"text": "too long " * 1000}))
        command = [*bulletins, "--engine", "openai", "--base-url", f"{url}/v1", *options]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
        assert done.returncode == 1, done.stderr
        *before, last = read(tmp_path / "out.jsonl")
        assert before == records
        assert last.status == "error"
        assert "HTTP 400" in (last.error or "")


def test_vllm_in_this_process_goes_on_after_a_kill(model: Path, bulletins: list[str], tmp_path: Path) -> None:
    from vllm_reports import environment

    output = tmp_path / "out.jsonl"
    # One after the other, so that there is a time between records.
    command = [*bulletins, "--engine", "vllm", "--batch-size", "1"]
    # One process, so that the kill leaves none behind.
    settings = {**environment(), "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    log = tmp_path / "log"
    with log.open("w") as messages:
        run = subprocess.Popen(command, env=settings, stdout=messages, stderr=messages)
        try:
            deadline = time.monotonic() + 300
            while not output.exists() or not output.read_bytes().count(b"\n"):
                assert run.poll() is None, log.read_text()[-3000:]
                assert time.monotonic() < deadline
                time.sleep(0.01)
        finally:
            run.kill()
        assert run.wait() == -signal.SIGKILL
    before = output.read_bytes()
    assert 1 <= before.count(b"\n") < 3
    done = subprocess.run(command, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert output.read_bytes().startswith(before)
    records = read(output)
    assert [(record.index, record.status) for record in records] == [(n, "ok") for n in range(3)]
    assert all(record.completion_tokens > 30 and record.seconds > 0 for record in records)
    assert records[0].value["high_temperature"] == 41
