"""Prompt templates: the named ones, a user's own, and refusals that name the fields of both sides."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.errors import DataError
from jobs.prompt_template import DEFAULTS, FIELDS, Template, fitting, named, template_of
from jobs.schema import Source
from tests.support.tiny_data import data_config


def refusal(source: Source, prompt: str | Path) -> str:
    with pytest.raises(DataError) as refused:
        template_of(data_config(Path("cache"), source, prompt=str(prompt)))
    return str(refused.value)


def test_every_format_has_at_least_five_named_templates_its_default_among_them() -> None:
    assert len(named()) >= 6
    for source in FIELDS:
        assert len(fitting(source)) >= 5
        assert template_of(data_config(Path("cache"), source)) == named()[DEFAULTS[source]]


def test_every_named_template_separates_the_prompt_from_the_response() -> None:
    for name, template in named().items():
        prompt, response = template.filled(dict.fromkeys(template.fields, "x"))
        assert prompt[-1] in "\n ", f"{name}: tokens of prompt and response would not join as text"
        assert response.startswith("x"), name


def test_a_template_of_a_file_is_filled_and_braces_in_it_and_in_values_are_text(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text('prompt: "{{json}} {instruction}: "\nresponse: "{response}"\n')
    template = template_of(data_config(tmp_path, Source.dolly, prompt=str(path)))
    assert template.filled({"instruction": "{response}", "response": "r"}) == ("{json} {response}: ", "r")


def test_a_prompt_without_context_is_used_if_the_context_is_empty() -> None:
    template = Template("{context} {instruction}", "{response}", "{instruction}")
    values = {"instruction": "i", "response": "r"}
    assert template.filled(values | {"context": "c"})[0] == "c i"
    assert template.filled(values | {"context": ""})[0] == "i"


def test_fields_that_the_format_does_not_have_are_refused_with_those_of_both() -> None:
    assert refusal(Source.alpaca, "pubmedqa_decision") == (
        "data.prompt=pubmedqa_decision uses the fields question, final_decision, and records of data.source=alpaca "
        "have instruction, context, response, input, output. Change the template, or set data.prompt=alpaca, or to "
        "dolly, question_answer, llama2_chat or llama3_chat."
    )
    assert "uses the field category, and records of data.source=pubmedqa have" in refusal(
        Source.pubmedqa, "dolly_category"
    )


def test_an_unknown_name_is_refused_with_those_that_fit() -> None:
    assert refusal(Source.dolly, "alpacca") == (
        "data.prompt=alpacca: there is no such template. For your own give the path of a YAML file, or set "
        "data.prompt=dolly, or to alpaca, dolly_category, question_answer, llama2_chat or llama3_chat."
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "No such file or directory"),
        ("[]", "it has list, not prompt, prompt_without_context, response"),
        ("prompt: a\n", "it has prompt, not prompt, prompt_without_context, response"),
        ("prompt: a\nresponse: b\nsystem: c\n", "it has prompt, response, system, not "),
        ("prompt: 3\nresponse: b\n", "prompt is not a text"),
        ("prompt: a\nresponse: ' '\n", "response is empty"),
        ('prompt: "{instruction.__class__}"\nresponse: b\n', "{instruction.__class__} is not the name of a field"),
        ('prompt: "{instruction!r}"\nresponse: b\n', "{instruction} is not the name of a field"),
        ('prompt: "{}"\nresponse: b\n', "{} is not the name of a field"),
        ('prompt: "{"\nresponse: b\n', "Single '{' encountered in format string"),
    ],
)
def test_a_file_that_is_not_a_template_is_refused_with_the_reason(tmp_path: Path, text: str | None, why: str) -> None:
    path = tmp_path / "mine.yaml"
    if text is not None:
        path.write_text(text)
    message = refusal(Source.alpaca, path)
    assert message.startswith(f"data.prompt={path} cannot be read as a prompt template: {why}"), message
