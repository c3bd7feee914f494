"""What takes back a change, if it is little enough to be remembered until the next page."""

from app.dashboard.page import Undo

# It has to fit into a cookie, beside the message.
MAX_BYTES = 1200


def undo_by(action: str, fields: dict[str, str], label: str = "Undo") -> Undo | None:
    """None where it is too much."""
    size = sum(len(name.encode()) + len(value.encode()) for name, value in fields.items())
    return Undo(action, label, fields) if size <= MAX_BYTES else None
