"""The parts of the site that need none of its tools: links, the checks of the finished site, and the versions."""

import json

import pytest
from website import check, playground, publish
from website.pages import link_names, outside_links
from website.places import DOCS, REPOSITORY


def test_links_to_files_outside_the_pages_lead_to_the_repository():
    text = "[a](../examples/cart.py) [b](loops.md#margins) [c](https://example.org) [d](tutorials/writing-a-tuner.py)"
    assert outside_links(text, DOCS) == (
        f"[a]({REPOSITORY}/examples/cart.py) [b](loops.md#margins) [c](https://example.org) "
        "[d](tutorials/writing-a-tuner.md)"
    )
    block = "```python\nx = f[0](../examples/cart.py)\n```"
    assert outside_links(block, DOCS) == block


def test_public_names_are_links():
    api = {"selftune.MGAPS": "api/tuners.md#selftune.MGAPS"}
    assert link_names("`st.MGAPS`", api) == "[`st.MGAPS`](api/tuners.md#selftune.MGAPS)"
    for text in ("`st.unknown`", "# `st.MGAPS`", "[`st.MGAPS`](loops.md)", "```\n`st.MGAPS`\n```"):
        assert link_names(text, api) == text


@pytest.fixture
def site(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "index.html").write_text('<h1 id="top">x</h1><a href="a/">a</a>')
    (tmp_path / "a" / "index.html").write_text('<a href="../#top">home</a><img src="../x.png">')
    (tmp_path / "x.png").touch()
    (tmp_path / "sitemap.xml").write_text(f"<loc>{publish.ADDRESS}/a/</loc>")
    (tmp_path / "404.html").write_text('<a href="/selftune/a/">a</a><script>{"base":"/selftune"}</script>')
    return tmp_path


def test_a_good_site_has_no_problems(site):
    assert check.problems(site) == []


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        ('<a href="../b/">b</a>', "a/index.html links to ../b/, which does not exist"),
        ('<a href="../#bottom">b</a>', "a/index.html links to ../#bottom, which has no such anchor"),
        (
            '<script src="https://cdn.example/x.js"></script>',
            "a/index.html loads https://cdn.example/x.js from",
        ),
    ],
)
def test_problems_are_found(site, page, problem):
    (site / "a" / "index.html").write_text(f'<a href="../#top">home</a>{page}')
    assert [found.startswith(problem) for found in check.problems(site)] == [True]


def test_the_links_of_the_page_404_are_checked(site):
    (site / "404.html").write_text(
        '<a href="/selftune/a/">a</a><a href="/selftune/b/">b</a><a href="/selftune/">start</a>'
    )
    assert check.problems(site) == ["404.html links to /selftune/b/, which does not exist"]


def test_a_page_that_no_link_reaches_is_a_problem(site):
    (site / "orphan").mkdir()
    (site / "orphan" / "index.html").write_text("x")
    assert check.problems(site) == ["orphan/index.html is reached by no link"]


def test_versions(site, tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    publish.publish(folder, "dev", site)
    assert f"{publish.ADDRESS}/latest/a/" in (folder / "latest" / "sitemap.xml").read_text()
    publish.publish(folder, "0.10.0", site)
    (site / "index.html").write_text("an older release, published later")
    publish.publish(folder, "0.9.0", site)
    versions = json.loads((folder / "versions.json").read_text())
    assert [entry["version"] for entry in versions] == ["0.10.0", "0.9.0", "dev"]
    assert versions[0]["aliases"] == ["latest"]
    assert "top" in (folder / "latest" / "index.html").read_text()
    assert "latest/" in (folder / "index.html").read_text()
    for version in ("0.10.0", "latest", "dev"):
        assert (folder / version / "sitemap.xml").read_text() == f"<loc>{publish.ADDRESS}/{version}/a/</loc>"
    missing = (folder / "404.html").read_text()
    assert missing == '<a href="/selftune/latest/a/">a</a><script>{"base":"/selftune/latest"}</script>'
    with pytest.raises(SystemExit, match="VERSION"):
        publish.publish(folder, "../x", site)


def test_the_built_playground_is_part_of_the_site(tmp_path):
    site, built = tmp_path / "site", tmp_path / "dist"
    page = site / "playground" / "index.html"
    page.parent.mkdir(parents=True)
    link = f"<a {playground.INSTRUCTIONS}>Open the playground</a>"
    (site / "index.html").write_text('<a href="playground/">playground</a>')
    page.write_text(f'{link}<a href="../">start</a>')
    assert not playground.add(site, built)
    (built / "assets").mkdir(parents=True)
    (built / "assets" / "main.js").write_text("")
    source = (playground.ROOT / "playground" / "index.html").read_text(encoding="utf-8")
    (built / "index.html").write_text(source.replace("/src/main.ts", "./assets/main.js"))
    assert playground.add(site, built)
    assert 'content="../../"' in (site / "playground" / "app" / "index.html").read_text()
    assert check.problems(site) == []
