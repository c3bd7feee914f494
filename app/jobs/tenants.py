"""Tenants: whose things are whose.

Jobs have a tenant as a column. What is known by a name that callers choose (a concurrency key, a schedule,
whose turn it is in a fair queue) must not meet the same name of another tenant: it is kept with the tenant in
front. Names of the default tenant stay as they are, so that what was kept before there were tenants is found.
"""

DEFAULT_TENANT = "default"
# No name of a tenant can have it.
_SEPARATOR = "\x1f"


def scoped(tenant: str, name: str) -> str:
    """This name of this tenant, as it is kept."""
    if tenant == DEFAULT_TENANT and _SEPARATOR not in name:
        return name
    return f"{tenant}{_SEPARATOR}{name}"


def unscoped(tenant: str, kept: str) -> str:
    """The name as its tenant knows it."""
    return kept.removeprefix(f"{tenant}{_SEPARATOR}")


def owned(kept: str) -> tuple[str, str]:
    """Whose name it is, and the name as its tenant knows it."""
    tenant, separator, name = kept.partition(_SEPARATOR)
    return (tenant, name) if separator else (DEFAULT_TENANT, kept)
