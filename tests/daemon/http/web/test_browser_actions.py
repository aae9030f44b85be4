"""Jobs are changed and submitted in a real browser, by keyboard alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import zerotools
from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.web.pages import ANNA, BOB, OWN, Directory, Served, serving_page
from tests.daemon.http.web.visits import Visit, visiting
from tests.daemon.waiting import wait_for
from tests.golden_files import JOB as GOLDEN

pytestmark = pytest.mark.browser

CONFIG = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}}
LEAVE_BEFORE_ANSWER = """(closed) => {
  const answerOf = Response.prototype.json;
  Response.prototype.json = async function () {
    const answer = await answerOf.call(this);
    if (this.url.endsWith("/retry")) {
      const left = new Promise((resolve) => addEventListener("hashchange", resolve));
      location.hash = "#/machine";
      if (closed) await left.then(() => new Promise((resolve) => setTimeout(resolve)));
    }
    return answer;
  };
}"""
REST = """
gpus = 2
[model]
path = "{model}"
[data]
text = ["/data/*.txt"]
"""


@pytest.fixture
def visit(browser: Any, page: Served, service: FakeService) -> Iterator[Visit]:
    service.add(uid=ANNA, name="tiny", set_keys=("train.steps", "model.path", "env.TOKEN"))
    with visiting(browser, page) as found:
        yield found


def test_a_job_is_changed_by_keys(visit: Visit, service: FakeService) -> None:
    keyboard = visit.page.keyboard
    visit.show("#/jobs/1")
    visit.wait_for_text(".actions", "Edit…")
    keyboard.press("p")
    keyboard.press("Control+A")
    keyboard.type("7")
    keyboard.press("Enter")
    wait_for(lambda: service.views[1].priority == 7, "the priority")
    visit.page.wait_for_selector("dialog", state="detached")
    keyboard.press("e")
    shown = json.loads(visit.page.input_value("textarea[name=keys]"))
    assert set(shown) <= {"train", "model"}
    shown["train"]["steps"] = "many"
    keyboard.press("Control+A")
    keyboard.insert_text(json.dumps(shown))
    for _ in range(4):
        keyboard.press("Tab")
    keyboard.press("Enter")
    visit.wait_for_text("dialog [role=alert]", "train.steps")
    shown["train"]["steps"] = 11
    visit.page.locator("textarea[name=keys]").focus()
    keyboard.press("Control+A")
    keyboard.insert_text(json.dumps(shown))
    visit.page.get_by_role("button", name="Change the job").press("Enter")
    wait_for(lambda: service.views[1].spec["train"]["steps"] == 11, "the edit")
    visit.page.wait_for_selector("dialog", state="detached")
    for state, words in (("on_hold", "Release"), ("queued", "Hold")):
        keyboard.press("h")
        wait_for(lambda state=state: service.views[1].state == state, state)
        visit.wait_for_text(".actions", words)
    service.change(1, state="failed")
    visit.show("#/jobs")
    visit.show("#/jobs/1")
    visit.wait_for_text(".actions", "Run again…")
    keyboard.press("a")
    keyboard.press("Enter")
    visit.page.wait_for_function("() => location.hash === '#/jobs/2'")
    visit.errors = [each for each in visit.errors if not each.startswith("400 ")]


@pytest.mark.parametrize("closed", [True, False])
def test_a_late_answer_does_not_move_a_user_who_went_elsewhere(
    visit: Visit, service: FakeService, closed: bool
) -> None:
    """The view is closed by then, or will be: `hashchange` comes after a change of the hash."""
    service.change(1, state="failed")
    visit.show("#/jobs/1")
    visit.wait_for_text(".actions", "Retry")
    visit.page.evaluate(LEAVE_BEFORE_ANSWER, closed)
    visit.page.keyboard.press("r")
    visit.wait_for_text("#said", "#2 tiny: continues where this one stopped")
    visit.page.wait_for_selector(".heat-rows", state="attached")
    assert visit.page.evaluate("() => location.hash") == "#/machine"


@pytest.fixture
def named(service: FakeService, tmp_path: Path) -> Iterator[Served]:
    """A page whose daemon knows the names of users."""
    with serving_page(service, tmp_path / "named", people=Directory({})) as served:
        yield served


ASKED = (
    ("queued", "h", "Hold the job of bob: #{id} x of root?", "Hold", "on_hold"),
    ("on_hold", "h", "Release the job of bob: #{id} x of root?", "Release", "queued"),
    ("failed", "r", "Retry the job of bob: #{id} x of root?", "Retry", "failed"),
    ("queued", "c", "Cancel the job of bob: #{id} x of root?", "Cancel the job", "cancelled"),
    ("queued", "p", "Priority of the job of bob: #{id} x of root", "Set it", "queued"),
    ("failed", "a", "Run the job of bob: #{id} x of root again?", "Run again", "failed"),
    ("queued", "e", "Edit the job of bob: #{id} x of root", "Change the job", "queued"),
)


def test_an_administrator_confirms_whose_job_is_changed(
    browser: Any, named: Served, service: FakeService
) -> None:
    """The owner comes first, before what the owner may have written into the name."""
    for state, *_ in ASKED:
        service.add(uid=BOB, name="x of root", state=state, set_keys=("train.steps",))
    with visiting(browser, named, uid=OWN) as visit:
        keyboard, dialog = visit.page.keyboard, visit.page.get_by_role("dialog")
        for number, (state, key, title, yes, after) in enumerate(ASKED, 1):
            before = len(service.views)
            visit.show(f"#/jobs/{number}")
            visit.wait_for_text("main h1", f"#{number}")
            visit.page.wait_for_selector(".actions button")
            keyboard.press(key)
            assert dialog.get_by_role("heading").inner_text() == title.format(id=number)
            keyboard.press("Escape")
            visit.page.wait_for_selector("dialog", state="detached")
            assert (service.views[number].state, len(service.views)) == (state, before)
            keyboard.press(key)
            if key == "p":
                dialog.get_by_role("spinbutton").fill("7")
            if key == "e":
                dialog.locator("textarea").fill('{"train": {"steps": 11}}')
            dialog.get_by_role("button", name=yes, exact=True).click()
            visit.page.wait_for_selector("dialog", state="detached")
            done = (after, before + (key in "ra"))
            wait_for(
                lambda number=number, done=done: (
                    (service.views[number].state, len(service.views)) == done
                ),
                title,
            )
        assert (service.views[5].priority, service.views[7].spec["train"]["steps"]) == (7, 11)


def test_what_was_confirmed_of_one_owner_does_not_change_the_job_of_another(
    browser: Any, page: Served, service: FakeService
) -> None:
    service.add(uid=BOB)
    with visiting(browser, page, uid=OWN) as visit:
        visit.show("#/jobs/1")
        visit.page.wait_for_selector(".actions button")
        visit.page.keyboard.press("h")
        visit.page.wait_for_selector("dialog")
        service.change(1, uid=ANNA)
        visit.page.get_by_role("dialog").get_by_role("button", name="Hold").click()
        visit.wait_for_text("#said", "job 1 belongs to uid 1001, which the page did not show")
        assert service.views[1].state == "queued"
        visit.errors = [each for each in visit.errors if not each.startswith("403 ")]


def test_tabs_of_two_users_in_one_browser_have_their_own_rights(
    browser: Any, named: Served, service: FakeService
) -> None:
    """Both cookies go with every request; the secret of the tab decides."""
    service.add(uid=BOB, name="secret")
    with visiting(browser, named, uid=OWN) as visit:
        other = visit.context.new_page()
        other.goto(named.link(ANNA)["url"])
        other.wait_for_selector("#link.live")
        other.evaluate("() => { location.hash = '#/jobs/1'; }")
        other.wait_for_function(
            "() => document.querySelector('main')?.innerText.includes('It belongs to bob')"
        )
        assert "secret" not in other.inner_text("main")
        assert other.locator(".actions button").count() == 0
        other.keyboard.press("h")
        assert other.locator("dialog").count() == 0
        visit.show("#/jobs/1")
        visit.wait_for_text("main h1", "secret")
        visit.page.keyboard.press("h")
        visit.page.get_by_role("dialog").get_by_role("button", name="Hold").click()
        wait_for(lambda: service.views[1].state == "on_hold", "the hold")


def test_an_open_page_of_a_former_administrator_changes_nothing(
    browser: Any, service: FakeService, tmp_path: Path
) -> None:
    people = Directory({ANNA: {"admins"}})
    service.add(uid=BOB, name="secret")
    with (
        serving_page(
            service, tmp_path / "admins", administrators=["@admins"], people=people
        ) as page,
        visiting(browser, page) as visit,
    ):
        visit.show("#/jobs/1")
        visit.page.wait_for_selector(".actions button")
        visit.page.keyboard.press("h")
        people.groups.clear()
        visit.page.get_by_role("dialog").get_by_role("button", name="Hold").click()
        visit.wait_for_text("#said", "only its owner and administrators may hold it")
        assert service.views[1].state == "queued"
        visit.show("#/jobs")
        visit.show("#/jobs/1")
        visit.wait_for_text("main", "only its owner and administrators see what it does")
        assert visit.page.locator(".actions button").count() == 0
        visit.errors = [each for each in visit.errors if not each.startswith("403 ")]


def test_a_config_of_deepspeed_becomes_a_job(
    visit: Visit, service: FakeService, tmp_path: Path
) -> None:
    keyboard, page = visit.page.keyboard, visit.page
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(CONFIG))
    keyboard.press("4")
    page.get_by_label("Choose files").set_input_files(path)
    page.wait_for_function("() => document.querySelector('[name=text]').value.includes('zero_op')")
    page.get_by_role("button", name="Check").press("Enter")
    visit.wait_for_text("form.submit [role=status]", "Add model.path, data.text, train.steps")
    text = page.input_value("[name=text]").replace("[train]", "[train]\nsteps = 9")
    for model, words in (("models/tiny", "must be an absolute path"), ("/models/tiny", "")):
        page.get_by_label("Job file").focus()
        keyboard.press("Control+A")
        keyboard.insert_text(text + REST.format(model=model).replace("\ngpus = 2", ""))
        page.get_by_role("button", name="Check").press("Enter")
        if words:
            visit.wait_for_text("form.submit [role=alert]", words)
    visit.wait_for_text("form.submit [role=status]", "It would be accepted")
    visit.wait_for_text("form.submit", "memory: state of a rank: 12.0 MiB on the device")
    keyboard.press("Enter")
    page.wait_for_function("() => location.hash === '#/jobs/2'")
    assert service.uids == [ANNA]
    assert service.views[2].spec["zero"]["stage"] == 2
    assert service.views[2].spec["train"]["steps"] == 9
    visit.errors = [each for each in visit.errors if not each.startswith("400 ")]


def drop(visit: Visit, selector: str, files: dict[str, str]) -> None:
    """Drop files on an element, as a file manager does."""
    carried = visit.page.evaluate_handle(
        """(files) => {
          const carried = new DataTransfer();
          for (const [name, text] of files) carried.items.add(new File([text], name));
          return carried;
        }""",
        list(files.items()),
    )
    for kind in ("dragenter", "dragover", "drop"):
        visit.page.dispatch_event(selector, kind, {"dataTransfer": carried})


def test_files_are_dropped_on_any_part_of_the_page(visit: Visit, service: FakeService) -> None:
    page = visit.page
    job = REST.format(model="/models/tiny") + "[train]\nsteps = 9\n"
    drop(visit, "header", {"tiny.toml": job})
    page.wait_for_function("() => document.querySelector('[name=text]')?.value.includes('steps')")
    drop(visit, "form.submit", {"ds.json": json.dumps(CONFIG)})
    visit.wait_for_text("form.submit .chip", "with ds.json")
    assert page.input_value("[name=text]") == job, "the job file stays"
    page.get_by_role("button", name="Check").click()
    visit.wait_for_text("form.submit [role=status]", "It would be accepted")
    page.get_by_role("button", name="Queue the job").click()
    page.wait_for_function("() => location.hash === '#/jobs/2'")
    spec = service.views[2].spec
    assert (service.views[2].name, spec["zero"]["stage"], spec["train"]["steps"]) == ("tiny", 2, 9)
    visit.show("#/submit")
    drop(visit, "form.submit", {"large.toml": "#" * 131073})
    visit.wait_for_text("form.submit [role=alert]", "large.toml has 131073 bytes")
    assert page.input_value("[name=text]") == ""


def test_a_drawn_checkpoint_is_apart_from_the_page(visit: Visit, service: FakeService) -> None:
    """Its one script runs, and finds neither session nor cookie."""
    service.document = zerotools.inspect(GOLDEN).to_html()
    visit.show("#/jobs/1/picture/3")
    frame = visit.page.frame_locator("iframe")
    frame.locator("#map button").nth(4).wait_for()  # its script ran
    with visit.context.expect_page() as opened:
        visit.page.get_by_role("link", name="Open in a tab").click()
    tab = opened.value
    tab.on("pageerror", lambda error: visit.errors.append(f"{error}"))
    tab.locator("#map button").nth(4).wait_for()
    reads = "() => { try { return sessionStorage.length } catch (error) { return error.name } }"
    for body in (frame.locator("body"), tab.locator("body")):
        assert GOLDEN.name in body.inner_text()
        assert body.evaluate(reads) == "SecurityError"
    tab.close()
    asked: list[str] = []
    visit.page.on("request", lambda request: asked.append(request.url))
    with visit.page.expect_request("**/v1/jobs/1/checkpoints/0/picture"):
        visit.show("#/jobs/1/picture/..")
    assert not [url for url in asked if url.endswith("/v1/jobs/1/picture")], "a step is a number"


def test_a_job_is_submitted_by_keys(visit: Visit, service: FakeService) -> None:
    keyboard = visit.page.keyboard
    visit.wait_for_text("table.jobs", "tiny")
    keyboard.press("4")
    visit.wait_for_text("main h1", "Submit a job")
    keyboard.press("Tab")
    keyboard.insert_text(REST.format(model="/m") + "[train]\nsteps = 3\nbatch_size = 2\n")
    for _ in range(3):  # the files, what may be set besides, Check
        keyboard.press("Tab")
    keyboard.press("Enter")
    visit.wait_for_text("form.submit [role=status]", "It would be accepted")
    visit.page.wait_for_function("() => document.activeElement.textContent === 'Queue the job'")
    keyboard.press("Enter")
    visit.page.wait_for_function("() => location.hash === '#/jobs/2'")
    assert service.views[2].state == "queued"


def test_after_a_refusal_the_keyboard_is_where_it_is_needed(
    visit: Visit, service: FakeService
) -> None:
    keyboard, page = visit.page.keyboard, visit.page
    focused = "() => document.activeElement.name || document.activeElement.textContent"
    visit.show("#/submit")
    page.get_by_label("Job file").fill("gpus =")
    page.get_by_role("button", name="Check").press("Enter")
    visit.wait_for_text("form.submit [role=alert]", "is not valid TOML")
    assert page.evaluate(focused) == "text"
    keyboard.press("Control+A")
    keyboard.insert_text(REST.format(model="/m") + "[train]\nsteps = 3\nbatch_size = 2\n")
    page.get_by_role("button", name="Check").press("Enter")
    visit.wait_for_text("form.submit [role=status]", "It would be accepted")
    visit.show("#/jobs/1")
    page.get_by_role("button", name="Edit…").press("Enter")
    page.locator("textarea[name=keys]").fill('{"train": {"steps": "many"}}')
    page.get_by_role("button", name="Change the job").press("Enter")
    visit.wait_for_text("dialog [role=alert]", "train.steps")
    assert page.evaluate(focused) == "Change the job"
    visit.errors = [each for each in visit.errors if not each.startswith("400 ")]


def test_what_was_checked_is_what_is_queued(visit: Visit, service: FakeService) -> None:
    page = visit.page
    visit.show("#/submit")
    steps = "[train]\nsteps = 3\nbatch_size = 2\n"
    page.get_by_label("Job file").fill(REST.format(model="/m") + steps)
    page.get_by_text("Name, priority and time").click()
    page.get_by_label("Name", exact=True).fill("mine")
    page.get_by_label("Hold it").check()
    page.get_by_role("button", name="Check").click()
    visit.wait_for_text("form.submit [role=status]", "It would be accepted")
    queue = page.get_by_role("button", name="Queue the job")
    page.get_by_label("Priority", exact=False).fill("4")
    assert queue.is_disabled()
    visit.show("#/events")
    visit.show("#/submit")
    assert page.get_by_label("Name", exact=True).input_value() == "mine"
    page.get_by_role("button", name="Check").click()
    queue.click()
    page.wait_for_function("() => location.hash === '#/jobs/2'")
    view = service.views[2]
    assert (view.name, view.state, view.priority) == ("mine", "on_hold", 4)
