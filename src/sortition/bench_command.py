"""`sortition bench`: side by side with the peers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from sortition.given import check_writable
from sortition.integrations.errors import InputError
from sortition.usage import errors_in_one_line, notes

bench = typer.Typer(
    no_args_is_help=True,
    help="Side by side with the peers, the newest of them, in an environment of their own.",
)

Peers = Annotated[
    str,
    typer.Option(help="newest: installed into an environment of their own; installed: those that are here."),
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Where to save the figures, as JSON.")]
Plots = Annotated[Path | None, typer.Option(help="Folder for SVG files and a page of them.")]


@bench.command("samplers")
def _samplers(
    output: Output = None,
    plots: Plots = None,
    rows: Annotated[
        list[int] | None, typer.Option(min=1, help="Rows of a batch; may be repeated. By default 1, 32, 256.")
    ] = None,
    vocabulary: Annotated[int, typer.Option(min=100, help="Tokens of a row.")] = 131_072,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each sampler at each point.")] = 5,
    peers: Peers = "newest",
) -> None:
    """What a draw costs: ours, torch's sort, transformers' warpers, vLLM's CPU sampler."""
    with errors_in_one_line():
        from sortition.benchmarks import samplers

        options = {"rows": rows or samplers.ROWS, "vocabulary": vocabulary, "rounds": rounds}
        code = _run("samplers", options, peers, samplers.PACKAGES, output, plots)
    raise typer.Exit(code)


@bench.command("masks")
def _masks(
    cases: Annotated[
        Path | None,
        typer.Option(help="Schemas with instances: JSON lines of name, schema and tests. By default twenty."),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="Vocabulary in tiktoken's format. By default Llama 3's, of package llama-models."),
    ] = None,
    sample: Annotated[int, typer.Option(min=1, help="Schemas that are drawn.")] = 200,
    output: Output = None,
    plots: Plots = None,
    peers: Peers = "newest",
) -> None:
    """What schemas cost, and whether verdicts are right: ours, llguidance, xgrammar, GLRMask."""
    with errors_in_one_line():
        from sortition.benchmarks import masks

        vocabulary = tokenizer or masks.llama_vocabulary()
        if vocabulary is None:
            raise InputError("name a vocabulary with --tokenizer, or pip install --no-deps llama-models")
        corpus = cases or masks.CASES
        for path in (corpus, vocabulary):
            if not path.is_file():
                raise InputError(f"there is no file {path}")
        masks.read_cases(corpus, None)
        options = {"cases": corpus, "tokenizer": vocabulary, "sample": sample}
        code = _run("masks", options, peers, masks.PACKAGES, output, plots)
    raise typer.Exit(code)


@bench.command("drafting")
def _drafting(
    output: Output = None,
    rounds: Annotated[int, typer.Option(min=1, help="Measurements of each contender.")] = 3,
    prompts: Annotated[int, typer.Option(min=1, max=2, help="Texts of each task.")] = 2,
) -> None:
    """What drafts save: each drafter, plain generate, transformers' own assisted decoding."""
    with errors_in_one_line():
        # Said before anything has been measured, not after.
        if output is not None:
            check_writable(output)
        from sortition.benchmarks import drafting

        drafting.main(rounds=rounds, prompts=prompts, output=output)


def _run(
    name: str,
    options: dict[str, Any],
    peers: str,
    packages: Sequence[str],
    output: Path | None,
    plots: Path | None,
) -> int:
    """The exit code of a bench in a process of its own."""
    from sortition.benchmarks import peer_environment

    if peers not in peer_environment.PEERS:
        raise InputError(f"--peers is {' or '.join(peer_environment.PEERS)}, not {peers!r}")
    # Said before anything has been measured, not after.
    if output is not None:
        check_writable(output)
    if plots is not None and plots.exists() and not plots.is_dir():
        raise InputError(f"{plots} is no folder")
    return peer_environment.run(
        f"sortition.benchmarks.{name}",
        {**options, "output": output, "plots": plots},
        peers,
        packages,
        note=notes(),
    )
