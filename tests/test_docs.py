"""The lists agree: public names, their docstrings, the reference, the tests. (`test_float32.py` runs the pages.)"""

import importlib
import inspect
import re
from pathlib import Path

import pytest
from docs.pictures import svg

import selftune as st
from selftune import models, policies, references, testing

pytestmark = pytest.mark.versions

ROOT = Path(__file__).parent.parent
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *TUTORIALS]


def public(module):
    """By `dir`, as some are imported when they are first asked for."""
    return sorted(
        name for name in dir(module) if not name.startswith("_") and not inspect.ismodule(getattr(module, name))
    )


def defines(module, name):
    return getattr(getattr(module, name), "__module__", None) == module.__name__


NAMES = public(st)
THEORY = sorted(set(public(st.theory)) - set(NAMES))
STEP = sorted(["LearningRate", *(n for n in public(st.projected_step) if defines(st.projected_step, n))])
TESTING = public(testing)
MODELS = public(models)
POLICIES = public(policies)
REFERENCES = sorted(name for name in public(references) if defines(references, name))


@pytest.mark.parametrize("name", NAMES)
def test_docstring(name):
    text = inspect.getdoc(getattr(st, name))
    assert text
    assert len(text) > 40
    assert ">>>" in text


def test_the_reference_lists_every_public_name_and_no_other():
    modules = ("", ".models", ".theory", ".projected_step", ".policies", ".testing", ".references")
    sections = re.split(r"^## selftune(.*)$", (ROOT / "docs" / "reference.md").read_text(), flags=re.MULTILINE)[1:]
    assert tuple(sections[::2]) == modules
    lists = (NAMES, MODELS, THEORY, STEP, POLICIES, TESTING, REFERENCES)
    for names, section in zip(lists, sections[1::2], strict=True):
        assert sorted(re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)) == names


def test_the_reference_says_a_few_words_of_every_name():
    rows = [line for line in (ROOT / "docs" / "reference.md").read_text().splitlines() if line.startswith("| `")]
    assert [row for row in rows if not re.fullmatch(r"\| `\w+` \| [^`|]+ \|", row)] == []
    assert [row for row in rows if not 2 <= len(row.split("|")[2].split()) <= 13] == []


@pytest.mark.parametrize("name", MODELS)
def test_docstring_of_models(name):
    text = inspect.getdoc(getattr(models, name))
    assert text
    assert len(text) > 40
    assert (">>>" in text) == (not name.startswith("Abstract") and name != "Parameter")


@pytest.mark.parametrize("name", REFERENCES)
def test_docstring_of_references(name):
    text = inspect.getdoc(getattr(references, name))
    assert text
    assert len(text) > 40
    assert (">>>" in text) == (name not in ("AbstractReference", "as_reference"))


@pytest.mark.parametrize("name", sorted(set(TESTING) - {"PROPERTIES", "POLICY_PROPERTIES"}))
def test_docstring_of_testing(name):
    text = inspect.getdoc(getattr(testing, name))
    assert text
    assert len(text) > 40
    # The examples of the cases show the properties.
    properties = {check.__name__ for check in testing.POLICY_PROPERTIES}
    assert (">>>" in text) == (name not in {"AbstractCase", *properties})


@pytest.mark.parametrize("name", POLICIES)
def test_docstring_of_policies(name):
    text = inspect.getdoc(getattr(policies, name))
    assert text
    assert len(text) > 40
    assert (">>>" in text) == (not name.startswith("Abstract"))


def test_docstring_of_the_projected_step():
    assert ">>>" in (st.projected_step.__doc__ or "")
    assert [name for name in STEP if not getattr(st.projected_step, name).__doc__] == []


@pytest.mark.parametrize("name", ["my_tuner", "my_estimator"])
def test_the_skeletons_on_the_page_are_the_examples(name):
    assert (
        f"```python\n{(ROOT / 'examples' / f'{name}.py').read_text()}```"
        in (ROOT / "docs" / "add-a-tuner.md").read_text()
    )


@pytest.mark.parametrize("name", THEORY)
def test_every_formula_has_its_place_in_the_paper(name):
    value = getattr(st.theory, name)
    assert inspect.isclass(value) or re.search(r"Theorem|Lemma|Corollary|proof|lemma|theorem|robustness", value.__doc__)


def test_the_tests_use_every_public_name():
    # Results come back from calls, so tests need not name their types.
    results = (ROOT / "docs" / "reference.md").read_text().partition("### Types of results\n")[2].partition("\n#")[0]
    unnamed = {*re.findall(r"^\| `(\w+)`", results, flags=re.MULTILINE), "AbstractProcess", "Stream"}
    source = "".join(
        path.read_text() for path in (ROOT / "tests").rglob("test_*.py") if path.name != Path(__file__).name
    )
    used = set(re.findall(r"\b(st|theory)\.(\w+)", source))
    assert [name for name in NAMES if ("st", name) not in used and name not in unnamed] == []
    assert [name for name in THEORY if ("theory", name) not in used and name != "Row"] == []
    assert [
        name
        for name in REFERENCES
        if f"references.{name}" not in source and name[0].isupper() and name != "AbstractReference"
    ] == []
    assert [name for name in MODELS if f"models.{name}" not in source and not name.startswith("Abstract")] == []


def test_the_configuration_on_the_page_is_the_example():
    listing = (ROOT / "docs" / "cli.md").read_text().partition("```toml\n")[2].partition("```\n")[0]
    assert listing == (ROOT / "examples" / "cart.toml").read_text()


def test_links_lead_somewhere():
    links = [(page, link) for page in PAGES for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())]
    here = [(page, link) for page, link in links if not link.startswith("http")]
    assert len(here) > 10
    assert [f"{page.name}: {link}" for page, link in here if not (page.parent / link).exists()] == []


def anchor(heading):
    """The anchor that GitHub and the site give to a heading."""
    words = re.sub(r"[^\w\s-]", "", heading.replace("`", "").lower())
    return re.sub(r"\s", "-", words.strip())


def test_anchors_exist():
    broken = []
    for page in PAGES:
        for file, name in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text()):
            target = page.parent / file if file else page
            if file.startswith("http") or target.suffix != ".md":
                continue
            headings = re.findall(r"^#+ (.*)$", target.read_text(), flags=re.MULTILINE)
            if name not in {anchor(heading) for heading in headings}:
                broken.append(f"{page.name}: {file}#{name}")
    assert broken == []


def test_every_page_is_in_the_navigation_once():
    named = re.findall(r'"([\w/-]+)\.md"', (ROOT / "website" / "zensical.toml").read_text())
    pages = [
        path.relative_to(ROOT / "docs").with_suffix("").as_posix()
        for path in (*(ROOT / "docs").rglob("*.md"), *TUTORIALS)
    ]
    assert sorted(named) == sorted(pages)


def test_the_tutorials_are_listed():
    listed = re.findall(r"\(([\w-]+\.py)\)", (ROOT / "docs" / "tutorials" / "index.md").read_text())
    assert sorted(listed) == [path.name for path in TUTORIALS]


@pytest.mark.parametrize("name", ["data-flow", "one-step"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_drawings_are_those_of_their_scripts(name, theme):
    drawing = importlib.import_module(f"docs.pictures.{name.replace('-', '_')}").draw(svg.THEMES[theme])
    assert str(drawing) == (ROOT / "docs" / "figures" / f"{name}-{theme}.svg").read_text()


def test_the_moving_picture_is_that_of_the_first_page():
    """The README, the first page and the picture show one loop."""
    blocks = [
        re.search(r"loop = st\.Loop\(.*?\n\)\n", (ROOT / page).read_text(), flags=re.DOTALL)
        for page in ("README.md", "docs/index.md", "docs/pictures/moving_pid.py")
    ]
    readme, first, picture = (block[0] if block else "" for block in blocks)
    assert "PID" in readme
    assert readme == first == picture.replace("dt=DT", "dt=0.01")
