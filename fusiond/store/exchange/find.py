"""Look-ups in imported answers, where the store has none of its own. Standard library only.

An answer of another box is served where its device is equal to one of this box, or where it was asked for by the
device's model or key. The document is that of `best --json` with `imported` beside: the entry, its signer, and
whether that key is trusted here.
"""

from __future__ import annotations

import json
import os

from fusiond.store import lookup
from fusiond.store.document import document_of
from fusiond.store.exchange.database import Exchange
from fusiond.store.exchange.entry import canonical
from fusiond.store.format import exchange_file, lookup_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

    from fusiond.store.lookup import Says

_open: dict[str, Exchange] = {}


def exchange_of(store: str | os.PathLike[str]) -> Exchange | None:
    """The exchange beside a store, kept open for the next question; None where nothing was ever imported."""
    where = exchange_file(os.fspath(store))
    if not os.path.exists(where):
        _open.pop(where, None)
        return None
    found = _open.get(where)
    if found is None:
        if len(_open) >= 4:
            _open.pop(next(iter(_open))).close()
        found = _open[where] = Exchange(where)
    return found


def best_of(
    store: str | os.PathLike[str],
    *,
    families: Collection[str],
    sizes: Mapping[str, int] | None,
    device: str | None,
    devices: Collection[str],
    cache: str,
    driver: str | None,
    version: str,
    says: Says | None = None,
) -> dict[str, Any] | None:
    """The document for a content (one of `families`, as content_family_key), from what was imported; None where that
    has nothing. `sizes` None: those of the entry that is served. `devices`: the keys of the devices of this box that
    were asked for; a model or a key in `device` stands for itself."""
    exchange = exchange_of(store)
    if exchange is None or not families:
        return None
    keys = list(dict.fromkeys([*devices, *([device] if device else [])]))
    named = device is not None and device not in ("auto", "all")
    wrong = says.wrong if says is not None else {}

    def ask(text: str | None) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for family in sorted(families):
            found += exchange.find(family=family, devices=keys, cache=cache, sizes=text, own=False)
        found = [each for each in found if each["strategy_version"] not in wrong.get(each["strategy"], ())]
        found = [each for each in found if named or each["evidence"] not in ("counted", "replayed")]
        # Sorting is stable: the order is kept otherwise.
        return sorted(found, key=lambda each: each["evidence"] != "measured" and not named)

    found = ask(canonical(dict(sizes))) if sizes else []
    if not found:
        found = ask(None)
        if sizes and found:
            sizes = {**json.loads(found[0]["sizes"]), **sizes}
            asked = dict(sizes)
            found = [each for each in found if set(json.loads(each["sizes"])) == set(asked)]
            found.sort(key=lambda each: lookup.distance(json.loads(each["sizes"]), asked))
    if not found:
        return None
    first = found[0]
    text = exchange.envelope(first["key"])
    if text is None:
        return None
    head = json.loads(text)
    names = exchange.signers()
    return document(head, sizes or None, names.get(head["body"]["signer"]), driver, version, says)


def known_name(store: str | os.PathLike[str], name: str, cache: str) -> set[str]:
    """The families of which something was imported under a name."""
    exchange = exchange_of(store)
    if exchange is None:
        return set()
    return {each["family"] for each in exchange.of_name(lookup_name(name), cache=cache)}


def document(
    head: Mapping[str, Any],
    asked: Mapping[str, int] | None,
    trusted: str | None,
    driver: str | None,
    version: str,
    says: Says | None,
) -> dict[str, Any]:
    """The document of `best --json` for an envelope; `trusted` names its signer's key, None: nobody trusts it here."""
    body = head["body"]
    workload, sizes = body["workload"], body["workload"]["sizes"]
    wanted = dict(sizes if asked is None else asked)
    changed = _changed(body, {"driver": driver, "fusiond": version}, says)
    who = trusted if trusted is not None else f"{body['signer'][:16]}..., whose key is not trusted here"
    notes = [f"imported, and not measured on this box: signed by {who}"]
    if wanted != sizes:
        differing = [name for name in wanted if sizes.get(name) != wanted[name]]
        notes.append(f"measured at {', '.join(f'{name}={sizes.get(name)}' for name in differing)}")
    said = {
        **body,
        "workload": {"strategy": body["strategy"], "name": workload["name"], "key": workload["key"]},
        "content_key": workload["content_key"],
        "device": {name: body["device"][name] for name in ("name", "key")},
        "program_key": _key(body["program"]),
        "baseline_program_key": _key(body["unfused"]),
        "replaced": None,
        "source": None,
    }
    imported = {"key": head["key"], "signer": body["signer"], "trusted": trusted is not None, "name": trusted}
    return {**document_of(said, sizes, wanted, changed, notes), "imported": imported}


def _changed(body: Mapping[str, Any], today: Mapping[str, str | None], says: Says | None) -> list[str]:
    """What is another today than when the answer was measured."""
    then = {**body["environment"], "fusiond": body["fusiond"]}
    changed = [name for name, value in today.items() if value and then.get(name) and then[name] != value]
    if says is not None and says.versions.get(body["strategy"], body["strategy_version"]) != body["strategy_version"]:
        changed.append("strategy")
    return changed


def _key(program: Mapping[str, Any] | None) -> str | None:
    return program["key"] if program else None


def source(store: str | os.PathLike[str], key: str) -> str | None:
    """The sources of the fused program of an entry, to be read and not to be run; None where they did not come."""
    exchange = exchange_of(store)
    text = exchange.envelope(key) if exchange is not None else None
    if exchange is None or text is None:
        return None
    named = json.loads(text)["body"]["program"]
    plan = exchange.program(named["digest"]) if named is not None else None
    sources = json.loads(plan).get("sources") if plan is not None else None
    texts = [each.get("text") for each in sources or () if isinstance(each, dict)]
    return "\n".join(each for each in texts if isinstance(each, str)) or None
