"""Whom PostgreSQL runs as: it refuses root, and initdb refuses a user without an account."""

import ctypes
import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from app.embedded.processes import LIBC, EmbeddedPostgresError, ends_with_parent

CLONE_NEWUSER = 0x10000000


@dataclass(frozen=True)
class Identity:
    """Whom the server runs as: the owner of its files, and how a forked child becomes it."""

    name: str
    uid: int
    gid: int
    become: Callable[[], None]

    def obstacle(self, paths: Iterable[Path]) -> str | None:
        """What keeps it from being used, found out by trying."""
        script = 'for path; do test -x "$path" || { echo "it cannot reach $path"; exit; }; done'
        try:
            probe = subprocess.run(
                ["/bin/sh", "-c", script, "sh", *paths],
                cwd="/",
                preexec_fn=self.become,
                capture_output=True,
                check=True,
            )
        except subprocess.SubprocessError:
            return "the system does not permit it"
        return probe.stdout.decode(errors="replace").strip() or None


def choose_identity(paths: Iterable[Path]) -> Identity:
    uid, gid = os.geteuid(), os.getegid()
    account = _account(uid)
    if uid != 0 and account is not None:
        return Identity("as ourselves", uid, gid, lambda: None)
    # initdb looks its user up, so inside a namespace too it has to be one that the system knows. For the
    # same reason a namespace helps in a container that was given a uid without an account.
    nobody = _account("nobody") or max(pwd.getpwall(), key=lambda account: account.pw_uid)
    become_inside = partial(enter_user_namespace, uid, gid, nobody.pw_uid, nobody.pw_gid)
    candidates = [Identity("in a user namespace", uid, gid, become_inside)] if sys.platform == "linux" else []
    if uid == 0:
        drop = partial(_drop_privileges, nobody.pw_uid, nobody.pw_gid)
        candidates.append(Identity(f"as user {nobody.pw_name}", nobody.pw_uid, nobody.pw_gid, drop))
    obstacles = []
    for candidate in candidates:
        obstacle = candidate.obstacle(paths)
        if obstacle is None:
            return candidate
        obstacles.append(f"Run {candidate.name}: {obstacle}.")
    raise EmbeddedPostgresError(
        f"PostgreSQL does not run as uid {uid}, and nothing else works here. {' '.join(obstacles)} "
        "Run foreman as a normal user; or keep its data (FOREMAN_DATA_DIR, for example /var/lib/foreman) "
        "and its installation where other users can reach them; or set FOREMAN_DATABASE_URL to a PostgreSQL "
        "of your own."
    )


def _account(who: int | str) -> pwd.struct_passwd | None:
    with suppress(KeyError):
        return pwd.getpwuid(who) if isinstance(who, int) else pwd.getpwnam(who)
    return None


def enter_user_namespace(uid: int, gid: int, inner_uid: int, inner_gid: int) -> None:
    """In a forked child, which has one thread as unshare demands. The kernel goes on seeing uid and gid."""
    if LIBC.unshare(CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    Path("/proc/self/setgroups").write_text("deny", encoding="utf-8")
    Path("/proc/self/uid_map").write_text(f"{inner_uid} {uid} 1", encoding="utf-8")
    Path("/proc/self/gid_map").write_text(f"{inner_gid} {gid} 1", encoding="utf-8")


def _drop_privileges(uid: int, gid: int) -> None:
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)


def in_child(identity: Identity, death_signal: signal.Signals, parent: int) -> None:
    """Between fork and exec: become the identity, then tie the life of this process to its parent's."""
    identity.become()
    # In this order: a change of credentials clears the death signal.
    if not ends_with_parent(death_signal, parent):
        os._exit(1)
