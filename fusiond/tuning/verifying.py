"""Measures an answer again, here and now, against its unfused way: the recorded winner of this device, or an answer of
another machine that a trusted key signed.

The programs of another box come into the store here and nowhere else: after its signature, its key and the digests of
its plans were compared. They are checked like every candidate before they are timed, and what comes of it is an answer
of this box.
"""

import dataclasses
import logging

from fusiond.model.errors import FusiondError, NothingKnown
from fusiond.model.nouns import Config
from fusiond.model.outcomes import MeasureFailed, Record
from fusiond.model.program import Program
from fusiond.store.exchange import signing
from fusiond.store.exchange.database import Exchange
from fusiond.store.exchange.entry import Refused
from fusiond.store.exchange.find import exchange_of
from fusiond.store.exchange.records import program_of, record_of, with_programs
from fusiond.tuning import answers, finals, prior
from fusiond.tuning.bench import Bench, ready
from fusiond.tuning.context import Context, Entrant

log = logging.getLogger(__name__)


def verify(context: Context) -> None:
    """Measure, decide, and write the answer down. NothingKnown where there is nothing to measure again."""
    workload, cache = context.prepared.workload, context.search.cache
    record = next(iter(context.store.incumbents(workload.key, context.device.key, cache)), None)
    if record is None:
        _verify_carried(context)
        return
    if record.program_key is None or record.baseline_program_key is None:
        raise NothingKnown(f"nothing is recorded for {workload.name} on {context.device.name}")
    unfused = context.store.program(record.baseline_program_key)
    if context.store.program(record.program_key) is None or unfused is None:
        raise NothingKnown(f"the programs of {workload.name} are gone from the store; tune it again")
    config = record.baseline_config or context.store.config_of(unfused.key) or Config(())
    _conclude(ready(context), record, Entrant(program=unfused, config=config, name=record.baseline), {})


def _conclude(context: Bench, record: Record, unfused: Entrant, finalists: dict[str, Entrant]) -> None:
    entered = finals.field(context, [unfused], finalists)
    finals.measure(context, entered)
    found, why = answers.conclude(context, entered, record.ended)
    if found is None:  # what is recorded stands: no evidence is not a reason to forget it
        raise FusiondError(
            f"{context.prepared.workload.name} has no new answer: {why or finals.lost(context)}; the record of "
            f"{record.found_at} stands"
        )
    # How the answer came about has not changed.
    answers.publish(context, dataclasses.replace(found, trials=record.trials, figures=prior.of(record)), why)


def _verify_carried(context: Context) -> None:
    """The same for what was imported; what is wrong here is served no more."""
    workload, exchange = context.prepared.workload, exchange_of(context.store.path)
    carried = None if exchange is None else _carried(context, exchange)
    if carried is None or exchange is None:
        raise NothingKnown(f"nothing is recorded for {workload.name} on {context.device.name}")
    key, record, *programs = carried
    bench = ready(context)
    for program in programs:
        context.store.save_program(program)
    unfused = finals.checked(bench, programs[1].key, record.baseline_config, record.baseline)
    fused = finals.checked(bench, programs[0].key, record.config, "")
    for each in (unfused, fused):
        if isinstance(each, MeasureFailed) and each.outcome not in finals.TRANSIENT:
            reason = f"{each.outcome.value}: {each.reason}"
            log.error("the imported answer to %s is not right here: %s", workload.name, reason)
            exchange.refute(key, f"on {context.device.name}: {reason}")
    if not isinstance(unfused, Entrant) or not isinstance(fused, Entrant):
        failed = next(each for each in (unfused, fused) if isinstance(each, MeasureFailed))
        raise FusiondError(f"the imported answer to {workload.name} could not be measured here: {failed.reason}")
    _conclude(bench, record, unfused, {fused.key: fused})


def _carried(context: Context, exchange: Exchange) -> tuple[str, Record, Program, Program] | None:
    """Key, record and programs (fused, unfused: whole ones) of the best imported answer of a trusted signer."""
    workload, device = context.prepared.workload, context.device
    for each in exchange.of_workload(workload.key, device.key, context.search.cache):
        try:
            entry = with_programs(exchange, each["key"])
            if entry is None:
                continue
            signing.verify(entry)
            return entry.key, record_of(entry, device), program_of(entry, "program"), program_of(entry, "unfused")
        except Refused as problem:
            log.warning("an imported answer to %s cannot be measured again: %s", workload.name, problem)
    return None
