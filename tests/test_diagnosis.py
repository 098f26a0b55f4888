"""What a server's figures are taken to say; and planted bottlenecks of a real one, each by its name."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from tiny_llama import save_tiny_llama
from typer.testing import CliRunner
from vllm_reports import needs_vllm
from vllm_server import serve

from sortition.benchmarks.diagnosis.causes import judged, parts
from sortition.benchmarks.diagnosis.diagnose import diagnose, shared_beginnings
from sortition.benchmarks.diagnosis.evidence import Evidence
from sortition.benchmarks.diagnosis.latencies import between_tokens, first_tokens
from sortition.benchmarks.diagnosis.load import Timed, made_up
from sortition.benchmarks.diagnosis.metrics import Figures
from sortition.benchmarks.diagnosis.pairs import Cost, Feature, Pair, Spread, features
from sortition.benchmarks.diagnosis.watch import Seen
from sortition.benchmarks.overhead.intervals import Interval
from sortition.benchmarks.overhead.load import SAMPLINGS
from sortition.cli import app
from sortition.integrations.errors import InputError
from sortition.integrations.smollm2 import embedded_model

TEXT = """\
# HELP vllm:wait seconds
# TYPE vllm:wait histogram
vllm:wait_bucket{engine="0",le="0.5"} 2.0
vllm:wait_bucket{engine="0",le="1.0"} 6.0
vllm:wait_bucket{engine="0",le="+Inf"} 8.0
vllm:wait_count{engine="0"} 8.0
vllm:wait_sum{engine="0"} 10.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
vllm:num_preemptions_total{engine="0"} 3
vllm:num_preemptions_total{engine="1"} 4
nonsense
"""


def test_figures_are_read() -> None:
    figures = Figures.read(TEXT)
    assert figures.count("vllm:num_preemptions") == 7
    assert figures.count("vllm:nothing") == 0
    assert figures.greatest["vllm:kv_cache_usage_perc"] == 0.75
    assert figures.mean("vllm:wait") == 1.25
    assert figures.quantile("vllm:wait", 0.25) == 0.5
    assert figures.quantile("vllm:wait", 0.5) == 0.75
    # Beyond the last bound nothing more is known.
    assert figures.quantile("vllm:wait", 0.99) == 1.0
    assert figures.quantile("vllm:nothing", 0.5) is None


def test_figures_between_two_times() -> None:
    later = Figures.read(TEXT.replace(" 6.0", " 7.0").replace(" 8.0", " 9.0").replace(" 10.0", " 10.75"))
    added = later.since(Figures.read(TEXT))
    assert added.observations("vllm:wait") == 1
    assert added.mean("vllm:wait") == 0.75
    assert added.quantile("vllm:wait", 0.5) == 0.75
    assert added.count("vllm:num_preemptions") == 0


def test_shared_beginnings() -> None:
    assert shared_beginnings(["aaaa", "bbbb"]) == 0
    assert shared_beginnings(["aaab", "aaac", "aaad"]) == 0.5
    assert shared_beginnings(["a"]) == 0
    assert shared_beginnings(made_up(20, 40)) < 0.1


def evidence(
    queue: float = 0.1, prefill: float = 0.1, decode: float = 0.1, preemptions: float = 0.0, **seen: float
) -> Evidence:
    """Of ten requests that each took a second and gave ten tokens."""
    seconds = {"queue": queue, "prefill": prefill, "decode": decode}
    totals = {"vllm:num_preemptions_total": preemptions}
    for name, value in seconds.items():
        totals |= {
            f"vllm:request_{name}_time_seconds_sum": 10 * value,
            f"vllm:request_{name}_time_seconds_count": 10,
        }
    gauges = {"running": 4, "waiting": 0, "most_running": 4, "most_waiting": 0, "cache_usage": 0.1, **seen}
    request = Timed(begin=0.0, first=0.1, gaps=(0.01,) * 9, whole=1.0, prompt=100, generated=10, cut=False)
    return Evidence([request] * 10, Figures(totals, {}, {}), Seen(**gauges), 8, 16, None)


def cost(between: Interval) -> Cost:
    pair = Pair(between, Spread(0.015, 0.02), Spread(0.01, 0.012))
    return Cost(Feature("a schema", {"more": 1}), pair, pair)


@pytest.mark.parametrize(
    ("given", "shared", "cause", "setting"),
    [
        (evidence(queue=0.8), 0.0, "queueing", "--max-num-seqs above 4"),
        (evidence(queue=0.8, most_running=8), 0.0, "queueing", "--max-num-batched-tokens"),
        (evidence(queue=0.8, cache_usage=0.97), 0.0, "kv cache", "--gpu-memory-utilization"),
        (evidence(decode=0.8, preemptions=5), 0.0, "kv cache", "--gpu-memory-utilization"),
        (evidence(prefill=0.8), 0.0, "prefill", "shorter prompts"),
        (evidence(prefill=0.8), 0.9, "prefix cache", "--enable-prefix-caching"),
        (evidence(decode=0.8), 0.0, "decode", "--quantization"),
        (evidence(decode=0.8, running=1.0), 0.0, "batching", "more requests at once"),
        (evidence(), 0.0, "outside the engine", "--api-server-count"),
        (
            replace(evidence(decode=0.8), feature=cost(Interval(0.005, 0.004, 0.006))),
            0.0,
            "sampling",
            "sortition overhead",
        ),
        (
            replace(evidence(decode=0.8), feature=cost(Interval(0.001, -0.001, 0.003))),
            0.0,
            "decode",
            "--quantization",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_causes(given: Evidence, shared: float, cause: str, setting: str) -> None:
    verdict = judged(given, shared)
    assert verdict.cause == cause
    assert setting in verdict.setting
    assert sum(parts(given).values()) == pytest.approx(given.whole)


def timed(begin: float, first: float, *gaps: float, **more: float) -> Timed:
    whole = first + sum(gaps)
    return Timed(begin, first, gaps, whole, prompt=9, generated=len(gaps) + 1, cut=False, **more)


def test_the_first_token_is_split_by_cause() -> None:
    requests = [timed(0, 1 + at, queued=0.5 + at, prefilling=0.25) for at in range(3)]
    found = first_tokens(replace(evidence(), requests=requests))
    assert found["of single requests"]
    assert found["p50"] == {"whole s": 2, "queue s": 1.5, "prefill s": 0.25, "elsewhere s": 0.25}
    assert found["p99"] == {"whole s": 3, "queue s": 2.5, "prefill s": 0.25, "elsewhere s": 0.25}
    # A server that says nothing of single requests has means of all.
    found = first_tokens(replace(evidence(queue=0.7, prefill=0.2), requests=[timed(0, 1)]))
    assert not found["of single requests"]
    assert found["p99"]["elsewhere s"] == pytest.approx(0.1)


def test_gaps_beside_prefills_of_others_are_kept_apart() -> None:
    """One writes from 1 to 5; another's prompt is read from 2.5 to 3.5, in the second and the third gap."""
    requests = [timed(0, 1, 1.0, 1.0, 1.0, 1.0, prefilling=0.5), timed(0, 3.5, 1.0, prefilling=1.0)]
    found = between_tokens(replace(evidence(), requests=requests))
    assert found["beside prefills of others"] == {"gaps": 2, "p50 s": 1, "p99 s": 1}
    assert found["decode alone"]["gaps"] == 3
    # Chunks of one step arrive at about the same time: the step after it is not the prefill's.
    requests = [timed(0, 1, 1.0, 1.0), timed(0, 2.001, 1.0, prefilling=0.5)]
    assert between_tokens(replace(evidence(), requests=requests))["beside prefills of others"]["gaps"] == 1


def test_features_are_all_combinations_but_the_plain_one() -> None:
    found = features([SAMPLINGS["greedy"], SAMPLINGS["top-k, top-p"]], ["none", "ours", "server"], {})
    assert [each.name for each in found] == [
        "greedy, structure ours",
        "greedy, structure server",
        "top-k, top-p, structure none",
        "top-k, top-p, structure ours",
        "top-k, top-p, structure server",
    ]
    assert found[2].fields == {"temperature": 1.0, "top_k": 50, "top_p": 0.9}
    assert set(found[3].fields) == {"temperature", "top_k", "top_p", "vllm_xargs"}


class Answers:
    """A server that says the same to whatever it is asked."""

    def __init__(self, said: bytes) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://127.0.0.1:{self._server.server_port}"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def test_bad_addresses() -> None:
    for url, message in (
        ("ftp://host", "begins with http://"),
        ("http://127.0.0.1:9/v1", "gives no figures"),
    ):
        with pytest.raises(InputError, match=message):
            diagnose(url, ["a"])
    with Answers(b"go_goroutines 7\n") as url, pytest.raises(InputError, match="none of vLLM's figures"):
        diagnose(url, ["a"])
    with pytest.raises(InputError, match="no prompts"):
        diagnose("http://127.0.0.1:9", [])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "gives no figures"),
        (["--extra", "{"], "--extra is not JSON"),
        (["--structure", "xgrammar"], "--structure is one of 'none', 'ours', 'server', not 'xgrammar'"),
        (["--rounds", "5"], "--rounds is 6 or more, not 5"),
        (["--extra", "[1]"], "--extra is an object of further fields"),
        (["--prompts", "nowhere.txt"], "nowhere.txt"),
    ],
)
def test_the_command_refuses(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["overhead", "--base-url", "http://127.0.0.1:9", *arguments])
    assert result.exit_code == 2
    assert message in result.output


needs_vllm()


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of a real model that runs one request at a time."""
    folder = tmp_path_factory.mktemp("narrow")
    with serve(
        embedded_model(),
        folder,
        max_num_seqs="1",
        max_model_len="512",
        logits_processors="slow_processor:Slow",
    ) as url:
        yield url


def diagnosed(url: str, prompts: list[str], **options: Any) -> dict[str, Any]:
    report = diagnose(url, prompts, **options)
    assert report["requests of others"] == 0
    return report


def test_one_slot(narrow: str) -> None:
    report = diagnosed(narrow + "/v1", made_up(6, 10), concurrency=6, max_tokens=6)
    assert report["verdict"]["cause"] == "queueing"
    assert report["verdict"]["setting"] == "--max-num-seqs above 1"


def test_long_prompts(narrow: str) -> None:
    report = diagnosed(narrow, made_up(3, 60), concurrency=1, max_tokens=2)
    assert report["load"]["prompt tokens"] > 100
    assert report["verdict"]["cause"] == "prefill"


def test_a_slow_processor(narrow: str) -> None:
    report = diagnosed(
        narrow,
        made_up(1, 10),
        concurrency=1,
        max_tokens=10,
        features=[Feature("a slow processor", {"vllm_xargs": {"slow_milliseconds": 200}})],
    )
    assert report["verdict"]["cause"] == "sampling"
    assert "with a slow processor than without" in report["verdict"]["why"]
    (pair,) = report["features"]
    between = pair["between tokens"]
    assert between["verdict"] == "slower"
    low, high = between["interval s"]
    # A sleep is never shorter than it should be, and mostly a little longer.
    assert 0.05 < low <= 0.25 and high >= 0.15
    assert between["with s"]["p50"] > between["without s"]["p50"] + 0.1


def test_structure_with_and_without(tmp_path: Path) -> None:
    """By the command: our processor and the server's own, with single requests' times from the server."""
    output = tmp_path / "report.json"
    with serve(
        save_tiny_llama(tmp_path / "tiny"),
        tmp_path,
        max_num_seqs="4",
        max_model_len="256",
        enable_per_request_metrics="",
    ) as url:
        options = [
            "--base-url",
            url,
            "--requests",
            "4",
            "--concurrency",
            "4",
            "--tokens",
            "8",
            "--rounds",
            "6",
        ]
        options += ["--structure", "none", "--structure", "ours", "--structure", "server"]
        result = CliRunner().invoke(
            app, ["overhead", *options, "--output", str(output)], env={"COLUMNS": "200"}
        )
    assert result.exit_code == 0, result.output
    report = json.loads(output.read_text())
    assert [each["feature"] for each in report["features"]] == [
        "greedy, structure ours",
        "greedy, structure server",
    ]
    for each in report["features"]:
        low, high = each["between tokens"]["interval s"]
        assert low <= each["between tokens"]["longer s"] <= high
        assert each["between tokens"]["with s"]["p50"] > 0
    assert report["load"]["generated tokens"] == 8
    assert report["first token by cause"]["of single requests"]
    # A server that is late sends two tokens at once, without a gap between them.
    assert 4 * 7 // 2 < sum(each["gaps"] for each in report["between tokens by cause"].values()) <= 4 * 7
    for text in ("greedy, structure ours: between tokens", "95 % interval", "beside prefills of others"):
        assert text in result.output


def test_a_small_cache(tmp_path: Path) -> None:
    with serve(
        save_tiny_llama(tmp_path / "tiny"),
        tmp_path,
        max_num_seqs="16",
        max_model_len="256",
        num_gpu_blocks_override="20",
    ) as url:
        report = diagnosed(url, made_up(24, 12), concurrency=16, max_tokens=96)
    assert report["verdict"]["cause"] == "kv cache"
