"""The page of the service: one self-contained file in the look of the report, which asks its own server alone.

`templates/` has its parts: `index.html.j2`, `page.css`, which comes after the report's theme, and the scripts, which
are one module when they are joined in the order of `SCRIPTS`.
"""

import base64
import hashlib
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from discopatch.explain.heatmap import LEAST, MOST, css_gradient
from discopatch.report.page import theme
from discopatch.results import COMPONENT_WORDS

SCRIPTS = ("api.js", "chart.js", "detail.js", "strip.js", "page.js")


def page_html() -> str:
    """The whole page; it is the same for every service, which it asks for its detectors."""
    return _PAGE


def _resource(name: str) -> str:
    return files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


def _hash_source(text: str) -> str:
    """What a content security policy calls the inlined text of one element."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _render() -> tuple[str, str]:
    """The page, and the policy under which nothing runs but the style and the script that are in it."""
    style = f"{theme()}\n:root {{ --gradient: {css_gradient()}; }}\n{_resource('page.css')}"
    script = "\n".join(map(_resource, SCRIPTS))
    environment = Environment(loader=PackageLoader(__package__), autoescape=True, undefined=StrictUndefined)
    page = environment.get_template("index.html.j2").render(
        style=Markup(style),
        script=Markup(script),
        words=COMPONENT_WORDS,
        legend=(LEAST, MOST),
    )
    policy = (
        f"default-src 'none'; script-src {_hash_source(script)}; style-src {_hash_source(style)}; "
        "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page, policy


_PAGE, CONTENT_SECURITY_POLICY = _render()
