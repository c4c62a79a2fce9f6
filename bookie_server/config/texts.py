"""The configuration as an operator wrote it, for those who ask a running bookie. Secrets are never among the keys."""

from __future__ import annotations

from collections.abc import Mapping

from bookie_server.config.conf_file import ConfFile
from bookie_server.config.config import SETTINGS
from bookie_server.config.config_keys import OTHER_KEYS


def given_texts(conf: ConfFile) -> dict[str, str]:
    """Return the keys of the file that this bookie uses, with their texts."""
    settings = [setting for setting in SETTINGS.values() if not setting.secret]
    names = [*OTHER_KEYS, *(name for each in settings for name in (each.name, each.other_name) if name)]
    return {name: text for name in names if (text := conf.text(name))}


def texts_of(given: Mapping[str, str]) -> dict[str, str]:
    """Return all keys with those texts, or with their defaults. A key without either is left out."""
    defaults = {
        each.name: each.default
        for each in SETTINGS.values()
        if each.default is not None and not each.secret and each.other_name not in given
    }
    return dict(sorted({**defaults, **given}.items()))
