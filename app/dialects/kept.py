"""A target's own frames in a job's log, where nobody translates them: nothing that it says is lost.

Nearly all frames of an answer differ in their text only. The first of them is kept as it came, and those that
look like it are kept as their text. What has to be kept is one of

    "text"                                    another frame like the last one that was kept with its text
    {"frame": …, "says": "text"}              a frame that says a text, with all that stands beside it
    {"frame": …}                              a frame that says more, or something else
    {"ends": […]}                             the last frames: the reasons and the counts

Frames that say nothing wait for the next one that does, and come `before` it: so that a position in what was
said is a position in the text of the result, and nobody hears of an end before the job has one. Ids and times
are those of whoever tells it.
"""

from abc import ABC, abstractmethod

from app.dialects.neutral import Part
from app.dialects.shapes import Frame, Kind, as_text


def text_of(part: Part) -> str | None:
    """The text of a part that says nothing else; it is as wide as that."""
    return part if isinstance(part, str) else part.get("says")


def shown_text(part: Part) -> str:
    """What of it is text, for those who read the log; a neutral frame has its own beside the rest."""
    return text_of(part) or ("" if isinstance(part, str) else as_text(part.get("text")))


def is_end(part: Part) -> bool:
    return not isinstance(part, str) and "ends" in part


def rest_of(part: Part, begins: int) -> Part:
    """A part of text without its first characters."""
    if isinstance(part, str):
        return part[begins:]
    return {"frame": part["frame"], "says": part["says"][begins:]}


class FrameShapes(ABC):
    """What keepers and tellers need to know of the frames of a dialect. Pure."""

    @abstractmethod
    def timeless(self, frame: Frame) -> Frame:
        """The frame without its id and its time."""

    @abstractmethod
    def says(self, kind: Kind, frame: Frame) -> str | None:
        """The text, if the frame says that and no more; whatever is known to nobody may stand beside it."""

    @abstractmethod
    def with_text(self, kind: Kind, frame: Frame, text: str) -> Frame:
        """A frame that says a text, with another one."""

    @abstractmethod
    def can_wait(self, kind: Kind, frame: Frame) -> bool:
        """Whether it says nothing, or only how the answer ended."""


class FrameKeeper:
    """The parts of one answer."""

    def __init__(self, kind: Kind, shapes: FrameShapes) -> None:
        self._kind = kind
        self._shapes = shapes
        self._waiting: list[Frame] = []
        # The last frame that was kept with its text, but without it.
        self._like: Frame | None = None

    def keep(self, frame: Frame) -> Part | None:
        frame = self._shapes.timeless(frame)
        if self._shapes.can_wait(self._kind, frame):
            self._waiting.append(frame)
            return None
        text = self._shapes.says(self._kind, frame)
        if not text:
            return self._behind_those_who_wait({"frame": frame})
        like = self._shapes.with_text(self._kind, frame, "")
        if not self._waiting and like == self._like:
            return text
        self._like = like
        return self._behind_those_who_wait({"frame": frame, "says": text})

    def repeat(self, text: str) -> Part | None:
        """The last frame once more, but with this text."""
        if text and not self._waiting:
            return text
        return None if self._like is None else self.keep(self._shapes.with_text(self._kind, self._like, text))

    def end(self) -> Part | None:
        ends, self._waiting = self._waiting, []
        return {"ends": ends} if ends else None

    def _behind_those_who_wait(self, part: Frame) -> Frame:
        if not self._waiting:
            return part
        waited, self._waiting = self._waiting, []
        return {"before": waited, **part}


class FrameTeller:
    """The frames again, for one reader."""

    def __init__(self, kind: Kind, shapes: FrameShapes) -> None:
        self._kind = kind
        self._shapes = shapes
        self._like: Frame | None = None
        self.ends: list[Frame] | None = None

    def frames(self, part: Part) -> list[Frame] | None:
        """Without ids and times; None for a part that was not kept by a keeper."""
        if isinstance(part, str):
            return None if self._like is None else [self._shapes.with_text(self._kind, self._like, part)]
        if "ends" in part:
            self.ends = part["ends"]
            return []
        if "frame" not in part:
            return None
        frame: Frame = part["frame"]
        if "says" in part:
            self._like = frame
            frame = self._shapes.with_text(self._kind, frame, part["says"])
        return [*part.get("before", ()), frame]
