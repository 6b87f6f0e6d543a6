"""A Markdown extension that writes the formulas pymdownx.arithmatex has found as MathML, which browsers show alone.

No script has to be loaded for them. zensical.toml names it.
"""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.postprocessors import Postprocessor

FOUND = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', flags=re.DOTALL)


class Formulas(Postprocessor):
    def run(self, text: str) -> str:
        return FOUND.sub(self.mathml, text)

    @staticmethod
    def mathml(found: re.Match[str]) -> str:
        shown: str = convert(html.unescape(found[2]), display="block" if found[1] == "div" else "inline")
        return shown


class MathML(Extension):
    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        md.postprocessors.register(Formulas(md), "mathml", -100)


def makeExtension(**options: Any) -> MathML:  # noqa: N802
    """What Markdown calls an extension by."""
    return MathML(**options)
