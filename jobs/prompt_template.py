"""Prompt templates: prompt and response of an instruction sample, from the fields of a record.

`data.prompt` is a name in conf/prompts.yaml or a YAML file with one template. This module knows the fields of each
format, so that a plan refuses a template that the records cannot fill; it reads no record.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import conf
from jobs.errors import DataError
from jobs.files import read_yaml, reason
from jobs.schema import Data, Source

NAMED = Path(str(conf.__file__)).parent / "prompts.yaml"
"""The templates that come with slurmscale, by name."""
KEYS = ("prompt", "prompt_without_context", "response")

COMMON = ("instruction", "context", "response")
FIELDS = {
    Source.alpaca: (*COMMON, "input", "output"),
    Source.docstrings: (*COMMON, "input", "output"),
    Source.dolly: (*COMMON, "category"),
    Source.pubmedqa: (*COMMON, "question", "long_answer", "final_decision"),
}
"""Fields of the records of each format. The common ones are, for Alpaca, its input and output under other names; for
PubMedQA the question, the abstract, and the long answer with the decision."""
DEFAULTS = {Source.alpaca: "alpaca", Source.docstrings: "alpaca", Source.dolly: "dolly", Source.pubmedqa: "pubmedqa"}


@dataclass(frozen=True)
class Template:
    """A prompt template; `{field}` stands for a field, `{{` and `}}` for braces."""

    prompt: str
    response: str
    prompt_without_context: str | None = None
    """The prompt of a record whose context is empty; None: `prompt` for all."""

    @property
    def fields(self) -> list[str]:
        """The fields that it uses, in order."""
        texts = (self.prompt, self.prompt_without_context or "", self.response)
        return list(dict.fromkeys(field for text in texts for _, field in parts_of(text) if field))

    def filled(self, values: Mapping[str, str]) -> tuple[str, str]:
        """Return prompt and response of a record with these values; raise KeyError for a field that it has not."""
        without = self.prompt_without_context is not None and not values.get("context")
        prompt = self.prompt_without_context if without else self.prompt
        assert prompt is not None
        return fill(prompt, values), fill(self.response, values)

    def texts(self) -> dict[str, str | None]:
        """Return its texts by key, as part of a digest."""
        return asdict(self)


def parts_of(text: str) -> list[tuple[str, str | None]]:
    """Return literal texts, each with the field after it; raise ValueError for anything but plain fields."""
    parts = []
    for literal, field, form, conversion in string.Formatter().parse(text):
        if field is not None and (not field.isidentifier() or form or conversion):
            raise ValueError(f"{{{field}}} is not the name of a field; a brace is written {{{{ or }}}}")
        parts.append((literal, field))
    return parts


def fill(text: str, values: Mapping[str, str]) -> str:
    """Return the text with the values of its fields."""
    return "".join(literal + (values[field] if field else "") for literal, field in parts_of(text))


def template_of(data: Data) -> Template:
    """Return the template of instruction data.

    Raise DataError for an unknown name, a file that is not a template, and for fields that the format does not have.
    """
    name = data.prompt or DEFAULTS[data.source]
    if is_file_name(name):
        try:
            template = template_from(read_yaml(name))
        except (OSError, ValueError) as error:
            raise DataError(
                f"data.prompt={name} cannot be read as a prompt template: {reason(error)}. A template has prompt and "
                f"response, and may have prompt_without_context, as in conf/{NAMED.name}. Correct it, or "
                f"{one_of(data.source)}."
            ) from error
    elif name in named():
        template = named()[name]
    else:
        raise DataError(
            f"data.prompt={name}: there is no such template. For your own give the path of a YAML file, or "
            f"{one_of(data.source)}."
        )
    if missing := [field for field in template.fields if field not in FIELDS[data.source]]:
        raise DataError(
            f"data.prompt={name} uses the field{'s' if len(missing) > 1 else ''} {', '.join(missing)}, and records of "
            f"data.source={data.source.name} have {', '.join(FIELDS[data.source])}. Change the template, or "
            f"{one_of(data.source)}."
        )
    return template


def is_file_name(prompt: str) -> bool:
    """Return True if a value of data.prompt is a path, and not the name of a template."""
    return "/" in prompt or prompt.endswith((".yaml", ".yml"))


@cache
def named() -> dict[str, Template]:
    """Return the templates of conf/prompts.yaml by name."""
    return {name: template_from(value) for name, value in read_yaml(NAMED).items()}


def fitting(source: Source) -> list[str]:
    """Return the names of the templates whose fields the records of a format have."""
    return [name for name, template in named().items() if set(template.fields) <= set(FIELDS[source])]


def one_of(source: Source) -> str:
    """Return the end of a sentence with the names that data.prompt takes for a format, its default first."""
    others = [name for name in fitting(source) if name != DEFAULTS[source]]
    return f"set data.prompt={DEFAULTS[source]}, or to {', '.join(others[:-1])} or {others[-1]}"


def template_from(value: Any) -> Template:
    """Return the template of a YAML value; raise ValueError if it is none."""
    if not isinstance(value, dict) or not {"prompt", "response"} <= set(value) <= set(KEYS):
        found = ", ".join(map(str, value)) if isinstance(value, dict) else type(value).__name__
        raise ValueError(f"it has {found or 'no keys'}, not {', '.join(KEYS)}")
    if wrong := [key for key, text in value.items() if not isinstance(text, str)]:
        raise ValueError(f"{wrong[0]} is not a text")
    template = Template(**value)
    if not template.response.strip():
        raise ValueError("response is empty")
    template.fields  # noqa: B018 (raises ValueError for a text that is not a template)
    return template
