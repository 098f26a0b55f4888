"""The command line: extract, compile, show, probe, overhead, bench.

Exit codes are 0 where all is well, and else those of `usage.py`.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, TypeAlias, cast

import typer
from rich.console import Console
from rich.table import Table as Grid

import sortition
from sortition.bench_command import bench
from sortition.integrations.errors import InputError
from sortition.overhead_command import overhead
from sortition.probe_command import ProbeCommand, probe
from sortition.usage import FAULT, INTERRUPTED, NOT_ALL, errors_in_one_line, quiet_transformers

if TYPE_CHECKING:
    from sortition.grammars.automaton import Automaton
    from sortition.grammars.grammar import Grammar
    from sortition.grammars.oracle import Walk
    from sortition.grammars.vocabulary import Vocabulary
    from sortition.integrations.extract import Extraction

SHOWN_RECORDS: Final = 5
"""Records that did not succeed and are named in the summary; all of them are in the output."""
SHOWN_BEFORE: Final = 30
"""Bytes of a refused text that are shown before the refused one."""
SHOWN_EDGES: Final = 60
"""Lines of an automaton that `show` prints: about a screen."""

Whitespace: TypeAlias = Annotated[
    str, typer.Option(help="Between JSON tokens: default, compact, any or a regex.")
]
Formats: TypeAlias = Annotated[
    str, typer.Option(help="Whether `format` counts: assert, or annotate to ignore it.")
]
AnyOrder: TypeAlias = Annotated[
    bool, typer.Option("--any-order", help="Declared keys may come in any order.")
]
Ignore: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEYWORD",
        help="Keyword of the schema that the grammar does not enforce, such as uniqueItems; may be repeated. "
        "Records of extract are still judged by the whole schema (with jsonschema).",
    ),
]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Decide which token a language model emits next.",
)
app.add_typer(bench, name="bench")
app.command("overhead")(overhead)
app.command("probe", cls=ProbeCommand)(probe)
out = Console()
err = Console(stderr=True)


def main() -> None:
    """Run the command line and exit."""
    try:
        app()
    except Exception:
        traceback.print_exc()
        err.print("this is a fault of the program, not of what it was given", style="bold red")
        sys.exit(FAULT)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sortition {sortition.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Say which version this is."),
    ] = False,
) -> None:
    # Threads that wait by spinning take six times the processor time where others want the cores, too.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@app.command("extract")
def _extract(
    schema: Annotated[Path, typer.Option(help="JSON Schema of the values.")],
    input: Annotated[Path, typer.Option(help="JSON lines, a text file, or a folder of text files.")],
    output: Annotated[
        Path, typer.Option(help="Where the records go, one a line. A run that stopped goes on.")
    ],
    model: Annotated[
        Path | None,
        typer.Option(help="Model folder, or a name in the Hub's cache. By default the embedded SmolLM2."),
    ] = None,
    prompt: Annotated[
        Path | None, typer.Option(help="Prompt template with {document} and, if wanted, {schema} in it.")
    ] = None,
    plain_prompt: Annotated[
        bool,
        typer.Option("--plain-prompt", help="Give the prompt as it is, not in the model's chat template."),
    ] = False,
    max_tokens: Annotated[int, typer.Option(min=1, help="The most tokens of one value.")] = 512,
    batch_size: Annotated[int, typer.Option(min=1, help="Documents that are read together.")] = 8,
    engine: Annotated[str, typer.Option(help="What runs the model: hf, vllm or openai.")] = "hf",
    device: Annotated[
        str | None, typer.Option(help="Where it runs (hf). By default on a GPU if there is one.")
    ] = None,
    tensor_parallel_size: Annotated[
        int, typer.Option(min=1, help="Devices that the model is split over (vllm).")
    ] = 1,
    data_parallel_size: Annotated[int, typer.Option(min=1, help="Copies of the model (vllm).")] = 1,
    base_url: Annotated[
        str | None, typer.Option(help="Server, such as http://localhost:8000/v1 (openai).")
    ] = None,
    served_model: Annotated[
        str | None, typer.Option(help="What the server calls the model. By default the first it names.")
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(help="How it takes a schema: sortition or response_format. By default asked."),
    ] = None,
    whitespace: Whitespace = "default",
    formats: Formats = "assert",
    any_order: AnyOrder = False,
    ignore: Ignore = None,
    text_field: Annotated[str, typer.Option(help="Field of a JSON line that holds the text.")] = "text",
    id_field: Annotated[str, typer.Option(help="Field of a JSON line that holds its id.")] = "id",
    unconstrained: Annotated[
        bool, typer.Option("--unconstrained", help="Let the model write what it likes, for comparison.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Drop the records that the output holds.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar and no summary.")] = False,
) -> None:
    """Read documents and write, for each, a JSON value that is valid under a schema."""
    quiet_transformers()
    with errors_in_one_line():
        from sortition.integrations.extract import extract

        try:
            extraction = extract(
                input,
                schema,
                model=model,
                output=output,
                overwrite=overwrite,
                prompt=prompt,
                chat=not plain_prompt,
                max_tokens=max_tokens,
                batch_size=batch_size,
                engine=engine,
                device=device,
                tensor_parallel_size=tensor_parallel_size,
                data_parallel_size=data_parallel_size,
                base_url=base_url,
                served_model=served_model,
                server=server,
                whitespace=whitespace,
                formats=cast(Any, formats),
                any_order=any_order,
                ignore=ignore or (),
                constrained=not unconstrained,
                text_field=text_field,
                id_field=id_field,
                progress=not quiet,
            )
        except KeyboardInterrupt:
            err.print("interrupted; the same command (without --overwrite) goes on where this one stopped")
            raise typer.Exit(INTERRUPTED) from None
    if not quiet:
        _print_summary(extraction, output)
    if not extraction.ok:
        raise typer.Exit(NOT_ALL)


@app.command("compile")
def _compile(
    schema: Annotated[Path, typer.Argument(help="JSON Schema.")],
    tokenizer: Annotated[
        Path | None, typer.Option(help="Folder of the tokenizer. By default the embedded model's.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Where to save the table.")] = None,
    instance: Annotated[
        list[Path] | None, typer.Option(help="JSON file to hold against the grammar; may be repeated.")
    ] = None,
    whitespace: Whitespace = "default",
    formats: Formats = "assert",
    any_order: AnyOrder = False,
    ignore: Ignore = None,
) -> None:
    """Say what a schema costs, what it accepts, and what is refused and why."""
    with errors_in_one_line():
        from sortition.integrations.documents import read_text

        begun = perf_counter()
        grammar = _json_grammar(schema, whitespace, formats, any_order, ignore)
        instances = {path: read_text(path) for path in instance or []}
        machine = grammar.machine
        built = perf_counter()
        vocabulary = _vocabulary(tokenizer)
        loaded = perf_counter()
        table = grammar.compile(vocabulary)
        compiled = perf_counter()
        typer.echo(table.describe())
        typer.echo(
            f"  time         {1000 * (built - begun):.0f} ms for the machine ({len(machine):,} states), "
            f"{1000 * (compiled - loaded):.0f} ms for the table"
        )
        for warning in grammar.warnings:
            typer.echo(f"warning: {warning}")
        if output is not None:
            try:
                table.save(output)
            except OSError as problem:
                raise InputError(f"cannot write {output}: {problem.strerror}") from None
            typer.echo(f"saved {output} ({output.stat().st_size:,} bytes)")
        refused = [path for path, text in instances.items() if not _print_verdict(grammar, path, text)]
        if refused and not any_order:
            typer.echo("(keys come in the order of `properties`, unless --any-order is given)")
    if refused:
        raise typer.Exit(NOT_ALL)


@app.command("show")
def _show(
    pattern: Annotated[
        str | None, typer.Argument(help="Regular expression, in the syntax of Python's re.")
    ] = None,
    schema: Annotated[Path | None, typer.Option(help="JSON Schema, instead of a pattern.")] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Folder of the tokenizer. By default the embedded model's.")
    ] = None,
    whitespace: Whitespace = "default",
    formats: Formats = "assert",
    any_order: AnyOrder = False,
    ignore: Ignore = None,
    prefix: Annotated[str, typer.Option(help="Text that stands already.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="The most tokens to list.")] = 40,
) -> None:
    """Show the automaton and, after a prefix, which tokens are eligible."""
    with errors_in_one_line():
        from sortition.grammars.automaton import BYTES, Automaton
        from sortition.grammars.oracle import Walk, allowed_tokens

        if pattern is not None and schema is None:
            if (whitespace, formats, any_order, ignore or None) != ("default", "assert", False, None):
                raise InputError(
                    "--whitespace, --formats, --any-order and --ignore are for --schema, not a pattern"
                )
            grammar = sortition.regex(pattern)
        elif schema is not None and pattern is None:
            grammar = _json_grammar(schema, whitespace, formats, any_order, ignore)
        else:
            raise InputError("give a pattern or --schema, one of the two")
        if grammar.rules:
            states, rules = len(grammar.machine), len(grammar.rules)
            typer.echo(f"{states:,} states, with a stack of calls between {rules:,} rules")
        else:
            _print_automaton(Automaton.of(grammar.root, BYTES))
        walk = Walk(grammar.machine)
        # Bytes of the shell that are no text stay what they are.
        if not _read(walk, os.fsencode(prefix)):
            raise typer.Exit(NOT_ALL)
        vocabulary = _vocabulary(tokenizer)
        tokens = allowed_tokens(walk, vocabulary)
        typer.echo(f"\nafter {prefix!r} the text {'may' if walk.can_end else 'may not'} end, and")
        typer.echo(f"{len(tokens):,} of {vocabulary.size:,} tokens are eligible{':' if tokens else ''}")
        for token in tokens[:limit]:
            typer.echo(f"  {token:>7}  {_spelled(vocabulary.tokens[token])}")
        if len(tokens) > limit:
            typer.echo(f"  and {len(tokens) - limit:,} more")


def _json_grammar(
    schema: Path, whitespace: str, formats: str, any_order: bool, ignore: list[str] | None
) -> Grammar:
    from sortition.integrations.schemas import read_schema

    return sortition.json_schema(
        read_schema(schema),
        whitespace=whitespace,
        formats=cast(Any, formats),
        any_order=any_order,
        ignore=ignore or (),
    )


def _print_summary(extraction: Extraction, output: Path) -> None:
    counts = extraction.counts
    fresh = extraction.records[extraction.resumed :]
    grid = Grid(show_header=False, box=None)
    grid.add_column(style="bold")
    grid.add_column(justify="right")
    grid.add_row("documents", f"{len(extraction.records):,}")
    if extraction.resumed:
        grid.add_row("  from an earlier run", f"{extraction.resumed:,}")
    for status in ("ok", "truncated", "invalid", "error"):
        if status == "ok" or counts[status]:
            grid.add_row(f"  {status}", f"{counts[status]:,}", style="green" if status == "ok" else "red")
    grid.add_row("prompt tokens", f"{sum(record.prompt_tokens for record in fresh):,}")
    grid.add_row("completion tokens", f"{sum(record.completion_tokens for record in fresh):,}")
    grid.add_row("tokens per second", f"{extraction.tokens_per_second:,.1f}")
    grid.add_row("seconds", f"{extraction.seconds:,.1f}")
    out.print(grid)
    failed = [record for record in extraction.records if record.status != "ok"]
    for record in failed[:SHOWN_RECORDS]:
        typer.echo(f"{record.id}: {record.status}: {record.error}")
    if len(failed) > SHOWN_RECORDS:
        typer.echo(f"and {len(failed) - SHOWN_RECORDS:,} more")
    typer.echo(f"records in {output}")


def _print_verdict(grammar: Grammar, path: Path, text: str) -> bool:
    """Say whether the grammar accepts a text, and where it stops if not."""
    from sortition.grammars.oracle import Walk

    walk = Walk(grammar.machine)
    # Editors end files with a newline, which is no part of the value.
    accepted = _read(walk, text.strip().encode(), f"{path}: ")
    if accepted and not walk.can_end:
        typer.echo(f"{path}: refused: it may not end there")
        return False
    if accepted:
        typer.echo(f"{path}: accepted")
    return accepted


def _read(walk: Walk, data: bytes, where: str = "") -> bool:
    """Walk over the bytes; say at which one no text goes on."""
    for index, byte in enumerate(data):
        if not walk.advance(byte):
            refused, before = data[index : index + 1], data[max(0, index - SHOWN_BEFORE) : index]
            typer.echo(f"{where}refused at byte {index}: {_spelled(refused)} after {_spelled(before)}")
            return False
    return True


def _print_automaton(automaton: Automaton) -> None:
    edges = list(automaton.edges())
    typer.echo(f"{len(automaton):,} states, {len(edges):,} edges; * may end")
    for source, ranges, target in edges[:SHOWN_EDGES]:
        units = " ".join(
            _spelled(bytes([low])) if low == high else f"{_spelled(bytes([low]))}-{_spelled(bytes([high]))}"
            for low, high in ranges
        )
        typer.echo(
            f"  {source}{'*' if automaton.accepting[source] else ''} -> {target}"
            f"{'*' if automaton.accepting[target] else ''}  {units}"
        )
    if len(edges) > SHOWN_EDGES:
        typer.echo(f"  and {len(edges) - SHOWN_EDGES:,} more")


def _spelled(text: bytes) -> str:
    """Bytes as a person reads them: as text where they are text."""
    try:
        return repr(text.decode())
    except UnicodeDecodeError:
        return repr(text)[1:]


def _vocabulary(folder: Path | None) -> Vocabulary:
    """The vocabulary of a tokenizer folder, the embedded model's by default."""
    from sortition.integrations.smollm2 import embedded_model

    quiet_transformers()
    try:
        folder = folder or embedded_model()
        return sortition.Vocabulary.of(folder)
    except InputError:
        raise
    except ModuleNotFoundError as missing:
        _refuse(f"reading a tokenizer needs {missing.name}: pip install 'sortition[hf]'")
    except FileNotFoundError as missing:
        _refuse(f"{missing}; or name a folder with --tokenizer")
    except (TypeError, ValueError) as problem:
        _refuse(f"the tokenizer in {folder} cannot be used: {problem}")


def _refuse(message: str) -> NoReturn:
    raise InputError(message) from None
