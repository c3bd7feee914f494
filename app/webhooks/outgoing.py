"""What calls to the outside need, made from the settings once: the guard, its clients, keys and secrets."""

from app.config import Settings, SettingsError, listed
from app.jobs.signing import parse_secret
from app.outbound.client import GuardedClient
from app.outbound.guard import AddressPolicy
from app.secretbox import SecretBox, SecretBoxError

LOOPBACK = "127.0.0.0/8,::1/128"
KEY_FILE = "secret.key"


class Outgoing:
    """Clients open nothing until they are used; `aclose` them in the end.

    Webhooks and jobs of kind `http` have a client each, so that neither can use up the other's connections.
    """

    def __init__(self, settings: Settings) -> None:
        """Raises SettingsError naming the setting that cannot be used."""
        try:
            self.policy = AddressPolicy(listed(_may_be_called(settings)))
        except ValueError as problem:
            raise SettingsError(f"FOREMAN_OUTBOUND_ALLOW: {problem}") from None
        try:
            self.box = SecretBox.from_setting(settings.secret_key) if settings.secret_key else None
        except SecretBoxError as problem:
            raise SettingsError(f"FOREMAN_SECRET_KEY: {problem}") from None
        self.server_secrets = _server_secrets(settings.webhook_secret)
        url = settings.openai_webhook_url
        reason = None if url is None else self.policy.check_url(url)
        if reason is not None:
            raise SettingsError(f"FOREMAN_OPENAI_WEBHOOK_URL: {reason}")

    def client(self) -> GuardedClient:
        """Belongs to the event loop it is made in."""
        return GuardedClient(self.policy)


def _may_be_called(settings: Settings) -> str:
    """Beside the public internet. Without a database of its own it is going to be the development mode."""
    is_development = settings.database_url is None and settings.auth == "off"
    return ",".join(filter(None, (settings.outbound_allow, LOOPBACK if is_development else "")))


def _server_secrets(setting: str | None) -> list[str]:
    secrets = listed(setting or "")
    try:
        for secret in secrets:
            parse_secret(secret)
    except ValueError as problem:
        raise SettingsError(f"FOREMAN_WEBHOOK_SECRET: {problem}") from None
    return secrets


def for_development(settings: Settings) -> Settings:
    """The embedded development mode: this machine may be called, and a key is kept beside the data.

    What was set explicitly stays. Where callers need a key, they are not the one person at this machine, and
    it may not be called.
    """
    update = {}
    if settings.auth == "off":
        update["outbound_allow"] = ",".join(filter(None, (settings.outbound_allow, LOOPBACK)))
    if settings.secret_key is None:
        path = settings.data_dir / KEY_FILE
        try:
            SecretBox.from_file(path)
        except (SecretBoxError, OSError) as problem:
            raise SettingsError(f"FOREMAN_DATA_DIR: {problem}") from None
        update["secret_key"] = path.read_text("ascii").strip()
    return settings.model_copy(update=update)
