"""The page of the service: one self-contained HTML file that only calls its own server.

`page.css` follows the theme of the report. The scripts are joined to one module in the order of `SCRIPTS`.
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


def _resource(name: str) -> str:
    return files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


def _hash_source(text: str) -> str:
    """The source of an inlined element in a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _render() -> tuple[str, str]:
    """The page, and the policy that allows its own style and script only."""
    style = f"{theme()}\n:root {{ --gradient: {css_gradient()}; }}\n{_resource('page.css')}"
    script = "\n".join(map(_resource, SCRIPTS))
    environment = Environment(loader=PackageLoader(__package__), autoescape=True, undefined=StrictUndefined)
    page = environment.get_template("index.html.j2").render(
        style=Markup(style), script=Markup(script), words=COMPONENT_WORDS, legend=(LEAST, MOST)
    )
    policy = (
        f"default-src 'none'; script-src {_hash_source(script)}; style-src {_hash_source(style)}; "
        "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page, policy


PAGE, CONTENT_SECURITY_POLICY = _render()
