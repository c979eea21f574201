"""Where the pages come from, and where the site goes."""

from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
WEBSITE = ROOT / "website"
PAGES = ROOT / "build" / "pages"
SITE = ROOT / "build" / "site"
REPOSITORY = "https://github.com/selftune/selftune/blob/main"
ADDRESS = "https://selftune.github.io/selftune"
"""Where GitHub shows the folder of the versions; website/zensical.toml has the same address."""
