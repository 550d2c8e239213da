"""What a release is made from: one version, one address, actions that cannot change under it."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import kullback

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
HOME = PROJECT["urls"]["Homepage"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def read(path: Path) -> dict:
    return yaml.safe_load(path.read_text())


def test_the_version_stands_in_the_package_alone():
    assert "version" not in PROJECT
    assert "version" in PROJECT["dynamic"]
    assert (
        read(ROOT / "packaging" / "conda-forge" / "recipe.yaml")["context"]["version"] == kullback.__version__
    )


@pytest.mark.sweep
def test_no_file_holds_what_a_merge_left_open():
    marks = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)
    text = {".cff", ".cpp", ".h", ".md", ".py", ".toml", ".txt", ".yaml", ".yml"}
    held = [
        path
        for path in ROOT.rglob("*")
        if path.suffix in text and ".venv" not in path.parts and path.is_file()
    ]
    assert len(held) > 400
    assert [
        str(path.relative_to(ROOT)) for path in held if marks.search(path.read_text(encoding="utf-8"))
    ] == []


def test_every_address_of_the_project_is_the_same():
    assert {url for url in PROJECT["urls"].values() if not url.startswith(HOME)} == set()
    readme = PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    assert [each["replacement"].startswith(f"\\1{HOME}/") for each in readme["substitutions"]] == [True, True]
    citation = read(ROOT / "CITATION.cff")
    assert citation["repository-code"] == citation["url"] == HOME
    recipe = read(ROOT / "packaging" / "conda-forge" / "recipe.yaml")
    assert recipe["about"]["repository"] == recipe["about"]["homepage"] == HOME
    assert f"<{HOME}/security/advisories/new>" in (ROOT / "SECURITY.md").read_text()


def test_the_citation_has_what_a_reference_needs():
    citation = read(ROOT / "CITATION.cff")
    needed = {
        "cff-version",
        "message",
        "title",
        "abstract",
        "type",
        "authors",
        "license",
        "version",
        "keywords",
    }
    assert needed | {"repository-code", "url"} <= set(citation)
    assert citation["license"] == PROJECT["license"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_action_stands_at_a_commit_and_jobs_may_only_read(path):
    text = path.read_text()
    used = re.findall(r"uses: *(\S+)(.*)", text)
    assert used
    for action, comment in used:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), action
    assert len(dict(action.split("@") for action, _ in used)) == len({action for action, _ in used})
    assert read(path)["permissions"] == {"contents": "read"}


def test_only_the_job_that_publishes_may_sign_and_it_waits_for_the_others():
    jobs = read(ROOT / ".github" / "workflows" / "release.yml")["jobs"]
    assert [name for name, job in jobs.items() if "permissions" in job] == ["publish"]
    assert set(jobs["publish"]["needs"]) == set(jobs) - {"publish"}
    assert not re.search(r"secrets\.", (ROOT / ".github" / "workflows" / "release.yml").read_text())


def test_tools_of_a_release_are_those_of_the_constraints():
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    for path in WORKFLOWS:
        for tool, version in re.findall(r"([\w.-]+)==(\d\S*)", path.read_text()):
            assert pinned.get(tool, version) == version, tool


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_issue_forms_ask_for_something(path):
    form = read(path)
    if path.name == "config.yml":
        assert form["contact_links"][0]["url"] == f"{HOME}/security/advisories/new"
        return
    assert form["name"]
    assert form["description"]
    assert all(field["attributes"]["label"] for field in form["body"])
    assert len({field["id"] for field in form["body"]}) == len(form["body"])


def script(name: str) -> ModuleType:
    """A script of .ci as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_page_of_results_is_made_of_its_results():
    made = script("compatibility")
    held = json.loads(made.RESULTS.read_text())
    assert held
    assert made.PAGE.read_text() == made.render(held)


def test_every_surviving_mutant_is_explained():
    held = json.loads(script("mutate").RESULTS.read_text())
    survivors = [
        each for part in held.values() for each in part["tried"].values() if each["outcome"] == "survived"
    ]
    assert [each["change"] for each in survivors if len(each.get("why", "")) < 20] == []


def test_all_kinds_of_packages_have_been_tried_and_passed():
    rows = json.loads(script("compatibility").RESULTS.read_text())
    assert {row["package"] for row in rows} == {"pure wheel", "native wheel", "sources, compiled"}
    assert all(row["passed"] > 500 and not {"failed", "error"} & set(row) for row in rows)
    assert all(row["native"] == (row["package"] != "pure wheel") for row in rows)


def test_the_build_has_what_it_needs_wherever_it_is_made():
    """The back end and its plug-in stand in every list of what builds the package without isolation."""
    requires = PYPROJECT["build-system"]["requires"]
    makefile = (ROOT / "Makefile").read_text()
    pinned = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    host = read(ROOT / "packaging" / "conda-forge" / "recipe.yaml")["requirements"]["host"]
    assert len(requires) == 2
    assert set(requires) <= set(script("compatibility").BUILD)
    for requirement in requires:
        name = re.match(r"[\w.-]+", requirement)[0]
        assert re.search(rf"^\t\$\(PIP\) .*\b{name}\b", makefile, re.MULTILINE), name
        assert name in pinned
        assert requirement.replace(">=", " >=") in host
        assert requirement in PROJECT["optional-dependencies"]["dev"]


def test_the_changelog_of_a_first_version_says_what_it_offers_in_500_words():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[([^]]+)\]", text, re.MULTILINE)
    assert versions == [kullback.__version__] == ["0.1.0"]
    assert 200 < len(text.split()) <= 500
