"""Pages have moved: at each old address a small page leads to the new one. nbs/redirects.yml is the table."""
import sys
from pathlib import Path

import yaml
from fastcore.script import call_parse
from nbdev.config import get_config

sys.path.insert(0, str(Path(__file__).parent))
from pages import page_of  # noqa: E402

# the script keeps what follows a # in the address, which a refresh would lose
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>This page has moved</title>
<script>location.replace("{to}" + location.hash)</script>
<meta http-equiv="refresh" content="0; url={to}">
</head>
<body><p>This page has moved to <a href="{to}">{to}</a>.</p></body>
</html>
"""


def table(nbs: Path) -> dict[str, str]:
    "Pages by the address that they had, all of the top level."
    file = nbs / "redirects.yml"
    moved = yaml.safe_load(file.read_text("utf-8")) if file.exists() else {}
    return {old: f"{page_of(notebook)}.html" for old, notebook in moved.items()}


def write(nbs: Path, site: Path) -> None:
    "Put the small pages into a built site; none takes the place of a page."
    for old, new in table(nbs).items():
        if (site / old).exists() and "has moved" not in (site / old).read_text("utf-8"):
            sys.exit(f"redirects.yml: {old} is a page of the site")
        (site / old).write_text(PAGE.format(to=new), encoding="utf-8")


@call_parse
def main(
    site: Path,  # the folder of a built site
):
    "Lead from the addresses that pages had to those that they have"
    write(get_config().nbs_path, Path(site))
