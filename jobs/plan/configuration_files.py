"""Configuration files as Hydra reads them, but for text: a scalar of a text key is the text that is written.

In YAML 1.1 `account: 0123` is 83, `begin: 16:30:00` is 59400 and `qos: on` is true, which a text key would print.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import IO, Any

import yaml
from hydra import initialize_config_module
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.core_plugins.importlib_resources_config_source import ImportlibResourcesConfigSource
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import OmegaConf
from omegaconf._utils import get_yaml_loader

from jobs.files import YAML_BYTES, read_bytes
from jobs.plan.choices import refuse_missing_site
from jobs.plan.hydra_errors import hydra_refusals
from jobs.plan.keys import is_text
from jobs.plan.refusals import refuse_odd_bytes
from jobs.schema import Run

HEADER_CHARACTERS = 512
"""Beginning of a file that Hydra searches for `# @package`."""
# Names of other choices, and values that are overrides: Hydra's grammar reads them later.
ALWAYS_TEXT = ("defaults.", "hydra.sweeper.params.")
STRING, MERGE, NULL = (f"tag:yaml.org,2002:{name}" for name in ("str", "merge", "null"))


@contextmanager
def composing(overrides: list[str]) -> Iterator[None]:
    """Initialize Hydra on conf/ and the site's own files, and turn what it raises into a ConfigError."""
    refuse_odd_bytes(overrides)
    refuse_missing_site()
    read_by_schema()
    with hydra_refusals(overrides), initialize_config_module("conf", version_base="1.3"):
        yield


def read_by_schema() -> None:
    """Make Hydra read the files of conf/ and of a site by this module."""
    # These register Hydra's own sources, which would not replace others.
    Plugins.instance()
    SourcesRegistry.instance().types |= {"file": SiteFiles, "pkg": PackagedFiles}


class NamedText(io.StringIO):
    """The text of a file, which PyYAML's errors name."""

    def __init__(self, text: str, path: Path) -> None:
        super().__init__(text)
        self.name = str(path)


class SiteFiles(FileConfigSource):
    """The files of a directory."""

    def load_config(self, config_path: str) -> ConfigResult:
        """Return the configuration in a file."""
        path = Path(self.path, self._normalize_file_name(config_path))
        return loaded(self, config_path, NamedText(read_bytes(path, YAML_BYTES).decode(), path))


class PackagedFiles(ImportlibResourcesConfigSource):
    """The files of a Python package."""

    def load_config(self, config_path: str) -> ConfigResult:
        """Return the configuration in a file."""
        with resources.files(self.path).joinpath(self._normalize_file_name(config_path)).open(encoding="utf-8") as file:
            return loaded(self, config_path, file)


def loaded(source: ConfigSource, config_path: str, file: IO[str]) -> ConfigResult:
    """Return the configuration in an open file."""
    header = ConfigSource._get_header_dict(file.read(HEADER_CHARACTERS))  # noqa: SLF001 (each source of Hydra does)
    file.seek(0)
    section = package(header["package"], config_path)
    values = yaml.load(file, text_loader(lambda name: name.startswith(ALWAYS_TEXT) or is_text(section + name)))  # noqa: S506
    return ConfigResult(
        provider=source.provider,
        path=source.full_path(),
        config=OmegaConf.create({} if values is None else values),
        header=header,
    )


def package(header: str | None, config_path: str) -> str:
    """Return the section that a file sets, with its dot: of its folder, unless its header names another one."""
    folder = ".".join(Path(config_path).parent.parts)
    section = folder if header is None else header.replace("_group_", folder).replace("_global_", "")
    return f"{section}." if section else ""


def text_loader(is_text_at: Callable[[str], bool]) -> Any:
    """Return OmegaConf's loader of YAML, which leaves scalars as text where `is_text_at(dotted name)` holds."""

    def construct_document(loader: Any, node: yaml.Node) -> Any:
        return base.construct_document(loader, with_text(node, "", is_text_at))

    base = get_yaml_loader()
    return type("TextLoader", (base,), {"construct_document": construct_document})


def with_text(node: yaml.Node, name: str, is_text_at: Callable[[str], bool]) -> yaml.Node:
    """Return a tree of YAML whose scalars are text at some dotted names; names in it are always text, null is null."""
    if isinstance(node, yaml.SequenceNode):
        elements = [with_text(each, name, is_text_at) for each in node.value]
        return yaml.SequenceNode(node.tag, elements, node.start_mark, node.end_mark, node.flow_style)
    if isinstance(node, yaml.MappingNode):
        pairs = []
        for key, value in node.value:
            # `<<: *anchor` merges a mapping into this one: its keys have no level of their own.
            inner = name if key.tag == MERGE else f"{name}.{key.value}".lstrip(".")
            pairs.append((as_text(key), with_text(value, inner, is_text_at)))
        return yaml.MappingNode(node.tag, pairs, node.start_mark, node.end_mark, node.flow_style)
    return as_text(node) if is_text_at(name) else node


def as_text(node: yaml.Node) -> yaml.Node:
    """Return a scalar as the text that is written, but for null; any other node as it is."""
    if isinstance(node, yaml.ScalarNode) and node.tag not in {STRING, MERGE, NULL}:
        return yaml.ScalarNode(STRING, node.value, node.start_mark, node.end_mark, node.style)
    return node


def register_schema() -> None:
    """Store the schema under the name that conf/config.yaml starts with."""
    ConfigStore.instance().store(name="run_schema", node=Run)


register_schema()
