"""`slurmscale skills`: short guides to common tasks, for people and for agents that read SKILL.md files."""

from __future__ import annotations

from pathlib import Path

from jobs.answers import SkillAnswer, SkillsAnswer
from jobs.errors import ConfigError
from jobs.files import parse_yaml, read_text
from jobs.output import write_output

SKILLS = Path(__file__).resolve().parents[1] / "skills"
FILE = "SKILL.md"


def skills(name: str | None, output: Path | None) -> SkillsAnswer:
    """Return all guides, or the one of a name; with `output` copy them there, each into a directory of its own.

    Raise ConfigError for an unknown name, and for a file that exists and is another one.
    """
    known = {path.parent.name: path for path in sorted(SKILLS.glob(f"*/{FILE}"))}
    if name is not None and name not in known:
        raise ConfigError(f"There is no skill {name!r}. The skills are {', '.join(known)}.")
    found = []
    for key, path in known.items() if name is None else [(name, known[name])]:
        text = read_text(path)
        file = None if output is None else output / key / FILE
        if file is not None:
            if file.exists() and read_text(file) != text:
                raise ConfigError(
                    f"{file} exists and was changed. Remove it, or set another directory with --output DIR."
                )
            write_output(file, text)
        found.append(SkillAnswer(key, description_of(text), text, None if file is None else str(file)))
    return SkillsAnswer(found)


def description_of(text: str) -> str:
    """Return the description in the front matter of a guide."""
    return str(parse_yaml(text.split("---")[1])["description"])
