"""Documents and a JSON Schema in, one validated record per document out."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from sortition.grammars.json_schema import json_schema
from sortition.grammars.schema_keywords import ignored
from sortition.integrations.documents import Document, read_documents, read_text
from sortition.integrations.errors import InputError
from sortition.integrations.generation import Completion, Job, check_engine, check_job, load_engine
from sortition.integrations.judgement import judged
from sortition.integrations.model_folder import local_folder
from sortition.integrations.openai_engine import settled
from sortition.integrations.prompts import DEFAULT_TEMPLATE, Template
from sortition.integrations.records import Journal, Record, Status
from sortition.integrations.schemas import read_schema
from sortition.integrations.validation import validator


@dataclass(frozen=True, slots=True)
class Extraction:
    """What became of a job.

    Attributes:
        records: one for each document, in the documents' order.
        resumed: how many of them an earlier run had written.
        seconds: wall time of this run, loading included.
        generating: the part of it that was spent on generating.
        warnings: what the schema says without effect, such as misspelt keywords.
    """

    records: tuple[Record, ...]
    resumed: int
    seconds: float
    generating: float
    warnings: tuple[str, ...]

    @property
    def counts(self) -> Counter[Status]:
        """Number of records by status."""
        return Counter(record.status for record in self.records)

    @property
    def ok(self) -> bool:
        """Whether every document has a valid value."""
        return all(record.status == "ok" for record in self.records)

    @property
    def tokens_per_second(self) -> float:
        """Tokens that this run wrote, per second of generating."""
        written = sum(record.completion_tokens for record in self.records[self.resumed :])
        return written / self.generating if self.generating else 0.0


def extract(
    documents: str | Path | Iterable[str | Mapping[str, Any] | Document],
    schema: Any,
    *,
    model: str | Path | None = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    prompt: str | Path | None = None,
    chat: bool = True,
    max_tokens: int = 512,
    batch_size: int = 8,
    engine: str = "hf",
    device: str | None = None,
    tensor_parallel_size: int = 1,
    data_parallel_size: int = 1,
    base_url: str | None = None,
    served_model: str | None = None,
    server: str | None = None,
    whitespace: str = "default",
    formats: Literal["assert", "annotate"] = "assert",
    any_order: bool = False,
    ignore: Collection[str] = (),
    constrained: bool = True,
    text_field: str = "text",
    id_field: str = "id",
    progress: bool = True,
) -> Extraction:
    """Let a model read documents and write, for each, a JSON value that is valid under a schema.

    Decoding is greedy. A record whose value is not valid is never ``"ok"``; a value that `max_tokens` cut off
    is ``"truncated"``. With `output`, every record is written as soon as it is there, and a run that was
    killed goes on where it stopped when it is called again with the same settings.

    Args:
        documents: a path (JSON lines, a text file, a folder of them), or texts or mappings in memory.
        schema: a dict, true or false, JSON text, the path of a JSON file (as a `Path`), or a pydantic class.
        model: a folder that transformers can load, or a name on the Hugging Face Hub whose model is in its
            cache; by default the embedded SmolLM2.
        output: the file of the records, one JSON object a line.
        overwrite: drop the records that `output` holds instead of going on from them.
        prompt: a template with ``{document}`` and ``{schema}`` in it, as text or as a `Path`.
        chat: write the prompt as a user's message in the tokenizer's chat template, if it has one.
        max_tokens: the most tokens of one value.
        batch_size: documents that are generated from together.
        engine: what runs the model: ``"hf"``, ``"vllm"``, or ``"openai"`` for a server.
        device: where the model of ``"hf"`` runs; by default on a GPU if there is one.
        tensor_parallel_size, data_parallel_size: of ``"vllm"``.
        base_url: of the server of ``"openai"``, such as ``"http://localhost:8000/v1"``. The API key is read
            from the environment variable ``OPENAI_API_KEY``, if that is set.
        served_model: what that server calls the model; by default the first that it names.
        server: how that server takes a schema: ``"sortition"`` if it runs our processor,
            ``"response_format"`` if it has means of its own; by default it is asked.
        whitespace: what may stand between JSON tokens, see `json_schema`.
        formats: ``"assert"``, or ``"annotate"`` to ignore `format`, also where values are judged.
        any_order: whether declared keys may come in any order, see `json_schema`.
        ignore: keywords that the model is not held to, see `json_schema`. Values are judged by the whole
            schema all the same, and what breaks such a keyword is ``"invalid"``, unless jsonschema is not
            installed.
        constrained: False to let the model write what it likes, for comparison.
        text_field, id_field: names of the fields of JSON lines and mappings.
        progress: show warnings and a bar on standard error.

    Raises:
        GrammarError: the schema cannot be enforced.
        InputError: something else that was given cannot be used.
    """
    begun = perf_counter()
    check_engine(engine)
    for name, value in (("max_tokens", max_tokens), ("batch_size", batch_size)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{name} is a whole number of at least 1, not {value!r}")
    unwanted = ignored(ignore)
    given, schema = schema, read_schema(schema)
    template = Template(read_text(prompt) if isinstance(prompt, Path) else prompt or DEFAULT_TEMPLATE)
    work = read_documents(documents, text_field=text_field, id_field=id_field)
    grammar = None
    if constrained:
        grammar = json_schema(
            schema, whitespace=whitespace, formats=formats, any_order=any_order, ignore=unwanted
        )
    check = validator(schema, formats)
    if grammar is not None:
        # Built here, so that what cannot be built is known before a model loads.
        _ = grammar.machine
    elif check is None:
        raise InputError("what a model writes by itself is judged by jsonschema: pip install jsonschema")
    folder = None if model is None else local_folder(model)

    if output is not None:
        _refuse_inputs_as_output(Path(output), documents, given, prompt)

    job = Job(
        schema=schema,
        grammar=grammar,
        model=folder,
        max_tokens=max_tokens,
        batch_size=batch_size,
        chat=chat,
        device=device,
        whitespace=whitespace,
        formats=formats,
        any_order=any_order,
        ignore=unwanted,
        tensor_parallel_size=tensor_parallel_size,
        data_parallel_size=data_parallel_size,
        base_url=base_url,
        served_model=served_model,
        server=server,
    )
    check_job(engine, job)
    if engine == "openai":
        job = settled(job)
    with ExitStack() as stack:
        journal = None
        if output is not None:
            settings = _settings(engine, job, template)
            journal = stack.enter_context(Journal(Path(output), settings, work, overwrite=overwrite))
        records = [] if journal is None else list(journal.done)
        resumed = len(records)
        bar = stack.enter_context(_Bar(len(work), resumed, shown=progress))
        warnings = () if grammar is None else grammar.warnings
        bar.warn(warnings)
        completions = _completions(engine, job, template, work[resumed:])
        for index, completion in enumerate(completions, start=resumed):
            record = judged(work[index], index, completion, grammar, check)
            records.append(record)
            if journal is not None:
                journal.append(record)
            bar.add(record)
    generating = sum((record.seconds for record in records[resumed:]), 0.0)
    return Extraction(tuple(records), resumed, perf_counter() - begun, generating, warnings)


class _Bar:
    """Warnings and a progress bar on standard error, which is moved by the records of this run."""

    def __init__(self, documents: int, resumed: int, *, shown: bool) -> None:
        self._shown = shown
        self._written, self._seconds = 0, 0.0
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not shown,
        )
        self._task = self._bar.add_task("loading the model", total=documents, completed=resumed, speed="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def warn(self, warnings: Iterable[str]) -> None:
        """Show warnings above the bar."""
        for warning in warnings if self._shown else ():
            self._bar.console.print(f"warning: {warning}", markup=False, highlight=False)

    def add(self, record: Record) -> None:
        """One record more is there."""
        self._written += record.completion_tokens
        self._seconds += record.seconds
        speed = f"{self._written / self._seconds:.0f} tokens/s" if self._seconds else ""
        self._bar.update(self._task, advance=1, description="extracting", speed=speed)


def _settings(engine: str, job: Job, template: Template) -> dict[str, Any]:
    """All that decides what records say, beside the documents."""
    return {
        "schema": _digest(job.schema),
        "prompt": _digest(template.text),
        "model": job.served_model or ("embedded" if job.model is None else _digest(_contents(job.model))),
        "engine": engine,
        "server": job.server,
        "max_tokens": job.max_tokens,
        "whitespace": job.whitespace,
        "formats": job.formats,
        "any_order": job.any_order,
        "ignore": list(job.ignore),
        "constrained": job.grammar is not None,
        "chat": job.chat,
    }


def _completions(engine: str, job: Job, template: Template, work: Sequence[Document]) -> Iterator[Completion]:
    """One completion for each document, in order. Documents without a text are not shown to the model."""
    prompts = [template.fill(document.text, job.schema) for document in work if document.text.strip()]
    written = load_engine(engine, job).generate(prompts) if prompts else iter(())
    for document in work:
        if document.text.strip():
            yield from islice(written, 1)
        else:
            yield Completion(error="the document is empty")


def _contents(folder: Path) -> list[tuple[str, int]]:
    """The files of a model, so that another one in the same folder is told from it: names and sizes."""
    files = (path for path in folder.iterdir() if path.is_file())
    return sorted((path.name, path.stat().st_size) for path in files)


def _refuse_inputs_as_output(output: Path, documents: Any, *files: Any) -> None:
    """Keep a run from writing over what it reads, or among it, where the next run would read its records."""
    paths = [Path(documents)] if isinstance(documents, str | Path) else []
    for path in [*paths, *(file for file in files if isinstance(file, Path))]:
        whole = path.resolve()
        if whole == output.resolve() or whole in output.resolve().parents:
            raise InputError(f"the output {output} lies in what is read, {path}")


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
