"""Shared parts of a document (docx) and a workbook (xlsx): text that XML can contain, and archives without dates.

Same inputs, same bytes.
"""

from __future__ import annotations

import io
import re
import zipfile

from analysis.formatting import one_line
from analysis.report.export.paper import NO_XML

PROPERTIES = "docProps/core.xml"
DATE = re.compile(rb"(<dcterms:(?:created|modified)[^>]*>)[^<]*")
NO_DATE = rb"\g<1>1980-01-01T00:00:00Z"


def clean(text: str) -> str:
    """Return one line of text that XML can contain."""
    return NO_XML.sub("?", one_line(text))


def undated(file: io.BytesIO) -> bytes:
    """Return an archive with fixed dates."""
    with zipfile.ZipFile(file) as given:
        parts = {name: given.read(name) for name in given.namelist()}
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            undated_part = DATE.sub(NO_DATE, data) if name == PROPERTIES else data
            archive.writestr(zipfile.ZipInfo(name), undated_part, zipfile.ZIP_DEFLATED)
    return written.getvalue()
