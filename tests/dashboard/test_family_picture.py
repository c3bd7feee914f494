"""The relatives of a job as boxes and lines: pure."""

from app.api.family import Children, Family, Relative, Relatives
from app.dashboard.family import MAX_SHOWN, picture, summary
from app.jobs.states import State


def relative(number: int, state: State | None = State.DONE, kind: str = "noop") -> Relative:
    return Relative(job_id=f"{number:026d}", state=state, kind=kind, model=None)


def some(number: int, total: int | None = None) -> Relatives:
    return Relatives(
        jobs=[relative(each) for each in range(number)], total=number if total is None else total
    )


def family(
    parent: Relative | None = None,
    children: int = 0,
    total: int | None = None,
    depends_on: int = 0,
    dependents: int = 0,
) -> Family:
    brood = some(children, total)
    return Family(
        parent=parent,
        children=Children(jobs=brood.jobs, total=brood.total, states={}),
        depends_on=some(depends_on),
        dependents=some(dependents),
    )


def test_without_relatives_there_is_no_picture() -> None:
    assert picture("x", "queued", family()) is None


def test_what_it_needs_is_on_the_left_and_what_needs_it_on_the_right() -> None:
    drawn = picture("mine", "working", family(relative(99), children=2, depends_on=1, dependents=1))
    assert drawn is not None
    own = drawn.boxes[0]
    assert own.label == "◑ mine"
    roles = {box.words.split(":")[0]: box.x for box in drawn.boxes[1:]}
    assert roles["parent"] < own.x
    assert roles["waited for"] < own.x
    assert roles["child"] > own.x
    assert roles["waits for it"] > own.x
    assert sorted(line.kind for line in drawn.lines) == ["parent", "parent", "parent", "waits", "waits"]
    assert all(line.x1 < line.x2 for line in drawn.lines)
    assert all(box.x >= 0 and box.y >= 0 and box.y + 26 <= drawn.height for box in drawn.boxes)


def test_without_a_left_side_no_room_is_left_for_it() -> None:
    drawn = picture("x", "queued", family(children=1))
    assert drawn is not None
    assert drawn.boxes[0].x == 1


def test_many_are_counted_and_never_more_than_fifty_boxes_are_drawn() -> None:
    drawn = picture("x", "queued", family(relative(1), children=20, total=1224, depends_on=20, dependents=20))
    assert drawn is not None
    assert len(drawn.boxes) <= 50
    assert f"and {1224 - MAX_SHOWN['child']:,} more".replace(",", "\u202f") in [
        box.label for box in drawn.boxes
    ]
    endless = picture("x", "queued", family(children=20, total=10_000))
    assert endless is not None
    assert endless.boxes[-1].label.endswith("more at least")


def test_one_that_is_gone_leads_nowhere() -> None:
    drawn = picture("x", "queued", family(relative(5, None)))
    assert drawn is not None
    assert drawn.boxes[1].job_id == ""
    assert "removed" in drawn.boxes[1].words


def test_a_name_that_would_turn_the_text_around_is_shown_and_cut() -> None:
    drawn = picture("\u202e" + "x" * 5000, "queued", family(relative(5)))
    assert drawn is not None
    assert "\u202e" not in drawn.boxes[0].label
    assert len(drawn.boxes[0].label) < 30


def test_states_are_told_in_one_order() -> None:
    assert summary({"done": 1200, "failed": 2, "queued": 1}) == "1 queued, 1\u202f200 done, 2 failed"
