"""Predictions of a decode step: by specification, calibrated, by op replay."""

from __future__ import annotations

import json
from dataclasses import replace

import jsonschema
import pytest
import torch
from rich.console import Console
from tiny_llama import save_tiny_llama
from transformers import AutoModelForCausalLM, LlamaConfig, MixtralConfig, Qwen3Config

from sortition.benchmarks.overhead.hf import TransformersEngine
from sortition.benchmarks.overhead.load import Load
from sortition.benchmarks.overhead.predict import specification
from sortition.benchmarks.overhead.predict.check import Checked, claims
from sortition.benchmarks.overhead.predict.hardware import device, devices
from sortition.benchmarks.overhead.predict.prediction import Point, Prediction
from sortition.benchmarks.overhead.predict.replay import in_layers
from sortition.benchmarks.overhead.predict.report import REPORT_SCHEMA, predict, show
from sortition.benchmarks.overhead.predict.shape import Linear, Shape
from sortition.integrations.errors import InputError

LLAMA_8B = LlamaConfig(
    vocab_size=128_256,
    hidden_size=4096,
    intermediate_size=14_336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
)


def test_the_shape_of_a_model_of_eight_billion() -> None:
    shape = Shape.of(LLAMA_8B)
    assert shape.parameters == 8_030_261_248
    # All but the embedding, of which a step reads a row, and the norms.
    assert shape.multiplied == shape.parameters - 128_256 * 4096 - 65 * 4096
    assert shape.linears[Linear(4096, 1024)] == 64
    assert 2 * shape.kv_numbers(1) == 131_072
    assert in_layers(shape)[:7].count(Linear(4096, 14_336)) == 2
    assert len(in_layers(shape)) == 7 * 32


@pytest.mark.parametrize("tied", [True, False])
def test_the_shape_is_that_of_the_model(tied: bool) -> None:
    config = Qwen3Config(
        vocab_size=500,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        tie_word_embeddings=tied,
    )
    model = AutoModelForCausalLM.from_config(config)
    shape = Shape.of(config)
    assert shape.parameters == sum(weights.numel() for weights in model.parameters())
    cache = model(torch.ones(1, 5, dtype=torch.int64)).past_key_values
    held = sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
    assert shape.kv_numbers(5) == held


def test_models_with_experts_are_refused() -> None:
    config = MixtralConfig(
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    with pytest.raises(InputError, match="models with experts"):
        Shape.of(config)


def test_every_figure_has_a_source() -> None:
    for each in devices():
        assert each.bandwidth > 1e11 and each.memory > 1e10
        assert all(operations > 1e13 for operations in each.operations.values())
        assert "sheet" in each.source or "whitepaper" in each.source
        assert each.url.startswith("https://")
    assert device("h100").bandwidth == 3.35e12
    with pytest.raises(InputError, match="several of the known devices: NVIDIA A100 40GB SXM"):
        device("a100")
    with pytest.raises(InputError, match="none of the known devices"):
        device("abacus")


@pytest.mark.parametrize(
    ("hardware", "published", "slower"),
    [
        # Tokens a second of one row that were published, and how many times as long as the bound they took.
        ("A100 40GB", 75, 1.4),
        ("H100 SXM", 196, 1.15),
    ],
)
def test_published_speeds_are_within_the_band(hardware: str, published: float, slower: float) -> None:
    bound = specification.decode(Shape.of(LLAMA_8B), "bfloat16", device(hardware), Point(1, 100))
    assert bound.binds == "bandwidth"
    assert 1 <= bound.tokens_per_second / published < slower < specification.SLOWER


def test_large_batches_are_bound_by_compute_and_long_ones_by_the_cache() -> None:
    shape, h100 = Shape.of(LLAMA_8B), device("H100")
    assert specification.decode(shape, "bfloat16", h100, Point(512, 10)).binds == "compute"
    assert specification.decode(shape, "bfloat16", h100, Point(16, 16_000)).binds == "attention/KV"
    assert specification.prefill(shape, "bfloat16", h100, 2000).binds == "compute"
    assert specification.fits(shape, "bfloat16", h100, Point(16, 16_000))
    assert not specification.fits(shape, "float32", h100, Point(200, 16_000))


def test_costs() -> None:
    found = Prediction("specification", Point(10, 1), {"bandwidth": 8.0, "launch": 2.0})
    assert found.tokens_per_second == 1000
    assert found.cost_of_a_million(3.6) == pytest.approx(1.0)


def test_what_is_small_is_not_rounded_to_nothing() -> None:
    """A tiny model on a large device takes nanoseconds, and a report says that steps take longer than 0."""
    found = Prediction("specification", Point(1, 1), {"bandwidth": 4.1649e-6, "launch": 0.0})
    said = found.as_json()
    assert (said["ms"], said["terms ms"]) == (4.1649e-6, {"bandwidth": 4.1649e-6, "launch": 0.0})
    assert said["tokens per second"] == pytest.approx(1000 / 4.1649e-6)
    assert replace(found, terms={"bandwidth": 1568.12345}).as_json()["ms"] == 1568.12


def test_twenty_percent_are_claimed_where_they_hold_and_nowhere_else() -> None:
    def checked(calibrated: float, replayed: float) -> Checked:
        point = Point(1, 1)
        return Checked(
            point,
            100.0,
            {
                "calibrated": Prediction("calibrated", point, {"compute": calibrated}),
                "op replay": Prediction("op replay", point, {"compute": replayed}),
            },
        )

    found = claims([checked(105, 95), checked(79, 119)])
    assert found["calibrated"] == {"points": 2, "greatest error": -0.21, "within 20 %": False}
    assert found["op replay"] == {"points": 2, "greatest error": 0.19, "within 20 %": True}


def test_a_small_model_is_predicted(tmp_path_factory: pytest.TempPathFactory) -> None:
    torch.set_num_threads(1)
    engine = TransformersEngine.load(save_tiny_llama(tmp_path_factory.mktemp("tiny")))
    load = Load(context=16)
    report = predict(
        engine,
        [Point(1, 16), Point(2, 64)],
        load,
        held_out=[Point(1, 16), Point(4, 32)],
        prompts=[24],
        dtypes=["bfloat16"],
        hardware=device("L4"),
        price=1.0,
    )
    report = json.loads(json.dumps(report))
    schema = json.loads(REPORT_SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(report, schema)
    assert len(report["held out"]) == 2 and len(report["held out prompts"]) == 1
    for each in report["held out"] + report["held out prompts"]:
        for found in each["predicted"]:
            assert found["ms"] == pytest.approx(sum(found["terms ms"].values()), abs=0.01)
            assert set(found["terms ms"]) >= {"attention/KV", "launch", "sampler", "host"}
    assert [row["structure"] for row in report["this machine"]] == ["none", "ours"] * 4
    assert [(each["context"], each["tier"]) for each in report["first token"]] == [
        (tokens, tier) for tokens in (16, 64) for tier in ("calibrated", "op replay", "specification")
    ]
    there = report["specification"]["rows"]
    assert len(there) == 2 * 4 and all(row["cost of a million tokens"] > 0 for row in there)
    console = Console(record=True, width=160)
    show(report, console)
    shown = console.export_text()
    assert "decode, op replay: claims" in shown and "first token, op replay: claims" in shown
    assert "up to 3.7 times as long" in shown and "https://" in shown


def test_a_term_grows_with_what_it_is_of() -> None:
    shape, l4 = Shape.of(LLAMA_8B), device("L4")
    one = specification.decode(shape, "bfloat16", l4, Point(1, 1000))
    assert specification.decode(shape, "bfloat16", l4, Point(1, 2000)).terms["attention/KV"] == pytest.approx(
        2 * one.terms["attention/KV"]
    )
    assert specification.decode(shape, "float32", l4, one.point).milliseconds == pytest.approx(
        2 * one.milliseconds
    )
    assert replace(one, point=Point(2, 1000)).tokens_per_second == 2 * one.tokens_per_second
