"""The client's half: a Flower mod that clips, adds noise, compresses and seals the ClientApp's reply."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from logging import INFO, WARNING, getLogger
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MessageType, MetricRecord, RecordDict

from cepam._internal.files import write_atomically
from cepam.keys import Key, KeyChain
from cepam.policy import ClientPolicy, FileAccount, read_policy
from cepam.protocol.agreement import RECORD, Chain, Declined, Offer, check_offer, seal_update
from cepam.protocol.correlated_noise import ClientCorrelatedNoise, CorrelatedNoiseRefused
from cepam.protocol.enforcement import EnforcedPolicy
from cepam.protocol.models import DOWNLINK, Arrays, BroadcastMessage, ClientModel, count, to_vector, unpack

STYPE = "cepam.v1"
BROADCAST = "cepam.broadcast"
SECURE_AGGREGATION = "cepam-secure-aggregation"  # the record of a message of a sum


def numpy_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays of a record, in its order."""
    return {name: array.numpy() for name, array in record.items()}


def record_of(arrays: Arrays) -> ArrayRecord:
    """The record of these arrays."""
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def same_or_new(record: ArrayRecord, given: Arrays, made: Arrays) -> ArrayRecord:
    """The record itself where nothing was changed: writing a large model anew takes time."""
    return record if all(made[name] is given[name] for name in given) else record_of(made)


def carry(message: bytes) -> ArrayRecord:
    """The record that carries a message: no header of ours or NumPy's, sent in chunks by Flower."""
    return ArrayRecord({"update": Array("uint8", (len(message),), STYPE, message)})


def carried(record: ArrayRecord) -> bytes:
    """The message in such a record; ValueError if it is something else."""
    if list(record) != ["update"] or record["update"].stype != STYPE:
        raise ValueError("the reply carries plain arrays, not a sealed message")
    return bytes(record["update"].data)


def pack(message: bytes, beside: Mapping[str, Any]) -> ArrayRecord:
    """The record that carries a broadcast, and beside it the arrays that are not on the grid."""
    return ArrayRecord({BROADCAST: Array("uint8", (len(message),), STYPE, message), **beside})


def unpacked(record: ArrayRecord) -> tuple[bytes, dict[str, Any]]:
    """The broadcast in such a record, and the arrays beside it; ValueError if it is something else."""
    if BROADCAST not in record or record[BROADCAST].stype != STYPE:
        raise ValueError("the message carries plain arrays, not a broadcast")
    beside = {name: array for name, array in record.items() if name != BROADCAST}
    return bytes(record[BROADCAST].data), numpy_of(beside)


POLICY_FILE = "cepam-policy"
ACCOUNT_FILE = "cepam-account"
RENAMED = {
    "cepam-terms": "cepam-policy",
    "cepam-state": "cepam-account",
    "cepam-epsilon": "epsilon in the file that cepam-policy names",
    "cepam-delta": "delta in the file that cepam-policy names",
    "cepam-batch": "divisor in the file that cepam-policy names",
}


def enforced(context: Context) -> EnforcedPolicy | None:
    """The policy that this node's configuration names, with its account; None where it names none.

    Raises:
        Declined: the configuration has a key of earlier versions, a file that cannot be read, or no account.
    """
    for old, new in RENAMED.items():
        if old in context.node_config:
            raise Declined("policy", f"{old} in this node's configuration is now {new}")
    if POLICY_FILE not in context.node_config:
        return None
    policy, account = read_node_policy(context), context.node_config.get(ACCOUNT_FILE)
    if not account:
        raise Declined("policy", f"a node with {POLICY_FILE} needs {ACCOUNT_FILE}, the file that counts what it spent")
    return EnforcedPolicy(policy, FileAccount(Path(str(account)).expanduser()))


def read_node_policy(context: Context) -> ClientPolicy:
    """The policy in the file that this node's configuration names."""
    from cepam.flower.client_mod import read_key_file

    text = read_key_file(context, POLICY_FILE)
    if text is None:
        raise Declined("policy", f"{POLICY_FILE} names no file")
    try:
        return read_policy(text)
    except ValueError as unfit:
        raise Declined("policy", f"the node's policy cannot be read: {unfit}") from unfit


def only_metrics(content: RecordDict, rules: EnforcedPolicy) -> dict[str, MetricRecord]:
    """The plain numbers of a reply that may leave: all, or none, as the policy says."""
    return {str(name): record for name, record in content.metric_records.items()} if rules.policy.metrics else {}


def evaluated(reply: Message, rules: EnforcedPolicy) -> Message:
    """The reply to an evaluation or a query without anything but metrics."""
    reply.content = RecordDict(dict(only_metrics(reply.content, rules)))
    return reply


STEPS = f"{DOWNLINK}-steps"


def receive(content: RecordDict, context: Context) -> ConfigRecord | None:
    """The report for the reply, once the content holds dense arrays; None where it came with dense arrays.

    `Declined` where the broadcast does not lead on from this node's copy: then the copy is as it was.
    """
    fields = content.get(DOWNLINK)
    if fields is None:
        return None
    records = content.array_records
    if not isinstance(fields, ConfigRecord) or len(records) != 1:
        raise Declined("arrays", f"a broadcast needs its fields and exactly one ArrayRecord, got {len(records)}")
    name, record = next(iter(records.items()))
    try:
        message, beside = unpacked(record)
        broadcast = BroadcastMessage.from_fields(fields, message)
    except ValueError as odd:
        raise Declined("arrays", str(odd)) from odd
    arrays, copy = unpack(broadcast, beside, _kept(context))
    _keep(context, copy)
    del content[DOWNLINK]
    content[name] = record_of(arrays)
    return ConfigRecord(copy.report)


def _kept(context: Context) -> ClientModel | None:
    """The copy in this node's state; None where there is none, or it is not one."""
    fields, steps = context.state.get(DOWNLINK), context.state.get(STEPS)
    if not isinstance(fields, ConfigRecord) or not isinstance(steps, ArrayRecord):
        return None
    try:
        state: dict[str, Any] = {key: fields[key] for key in ("version", "shift", "check")}
        state["steps"] = np.frombuffer(steps["steps"].data, dtype="<i4")
        return ClientModel(_of_type(fields["grid"], bytes), _of_type(fields["layout"], str), state)
    except (KeyError, TypeError, ValueError):
        return None


def _of_type(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is not {kind.__name__}")
    return value


def _keep(context: Context, copy: ClientModel) -> None:
    fields = {key: copy.state[key] for key in ("version", "shift", "check")}
    context.state[DOWNLINK] = ConfigRecord({**fields, "grid": copy.grid, "layout": copy.layout})
    steps = np.ascontiguousarray(copy.state["steps"], dtype="<i4")
    context.state[STEPS] = ArrayRecord({"steps": Array("int32", steps.shape, "cepam.v1", steps.tobytes())})


STATE = "cepam-correlated-noise"
FOLDER = "cepam-correlated-noise-folder"
SLICE, SLICES = "cepam-slice", "cepam-slices"
CLIP, DIVISOR, RECORD_SAMPLING_RATE = "cepam-clip", "cepam-divisor", "cepam-record-sampling-rate"


def follow(offer: Offer, reference: Arrays, content: RecordDict, context: Context) -> ClientCorrelatedNoise | None:
    """The noise of this offer's update, with its slice in the training configuration; None where it is independent."""
    if offer.settings.correlated_noise is None:
        return None
    try:
        correlated = ClientCorrelatedNoise.follow(offer, count(reference), _kept_noise(offer, context))
    except CorrelatedNoiseRefused as refused:
        raise Declined("order" if refused.code == "order" else "policy", str(refused)) from refused
    values: dict[str, int | float] = {SLICE: correlated.sender.slice, SLICES: correlated.config.slices}
    if correlated.config.divisor:
        values |= {CLIP: float(offer.settings.clip.bound), DIVISOR: float(correlated.config.divisor)}
    add_to_config(content, values)
    return correlated


def add_to_config(content: RecordDict, values: Mapping[str, int | float]) -> None:
    """Put the node's own figures into every configuration of a message, in place of any that the server put there."""
    records = {name: dict(record) for name, record in content.config_records.items()} or {"config": {}}
    for name, record in records.items():
        content[name] = ConfigRecord({**record, **values})


def keep(correlated: ClientCorrelatedNoise, offer: Offer, context: Context) -> None:
    """Save the state from which the next message goes on, before this one leaves."""
    fields = correlated.to_fields(offer.run)
    path = _file(offer, context)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        plain = {name: {"hex": value.hex()} if isinstance(value, bytes) else value for name, value in fields.items()}
        write_atomically(path, json.dumps(plain).encode(), private=True)
    context.state[STATE] = ConfigRecord(fields)


def _file(offer: Offer, context: Context) -> Path | None:
    folder = context.node_config.get(FOLDER)
    return Path(str(folder)).expanduser() / f"run-{offer.run}-node-{offer.node}.json" if folder else None


def _kept_noise(offer: Offer, context: Context) -> Mapping[str, object] | None:
    """What was kept of this run's noise: the file where there is one, which outlives the node, else the state.

    `Declined` for a file that cannot be read or is another run's: without it the server would say what was sent.
    """
    path = _file(offer, context)
    if path is not None and path.exists():
        try:
            read = json.loads(path.read_text())
            fields = {n: bytes.fromhex(v["hex"]) if isinstance(v, dict) else v for n, v in read.items()}
            if fields["run"] != str(offer.run):
                raise ValueError("it is another run's")
            return fields
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as damaged:
            raise Declined("order", f"{path} cannot be read, and with it what this node has sent") from damaged
    kept = context.state.get(STATE)
    return dict(kept) if isinstance(kept, ConfigRecord) else None


log = getLogger("flwr").log  # Flower's own log, which `flwr run --stream` shows

IDENTITY_FILE = "cepam-identity"
SERVER_FILE = "cepam-server"
FAILED = 6  # Flower's code for a mod whose preconditions do not hold
RAISED = 2  # and for an app that raised

LEGACY = "the ClientApp is built from client_fn or NumPyClient, which Flower has replaced: use @app.train()"
LEGACY_RECORDS = ("('fitins.", "('evaluateins.")  # what such an app looks for in a message

CallNext = Callable[[Message, Context], Message]


class Uplink:
    """A mod for `ClientApp(mods=[Uplink()])`: replies to a `Private` server leave private and small.

    Everything it needs comes from the server with each training message. A training message without an offer of such
    a server is refused, so that no plain update can leave; `required=False` lets it pass, with a warning.
    An update that is not finite leaves as zero with its noise, a metric that is not finite as 0. What cannot be sent
    (other shapes, a failed agreement, a training function that raises) becomes an error reply with a fixed code: it
    costs this client's reply and nothing else.

    Where the SuperNode's configuration has `cepam-identity`, a path to its authentication key, the key agreement is
    signed with it, and the server knows that the key belongs to the authenticated node. Where it has `cepam-server`, a
    path to the server's public key, offers that this key did not sign are refused: nobody can pose as the server.

    A model that comes as a quantized broadcast (`Private(downlink="quantized")`) is handed on as dense arrays; the
    node's copy is kept in `context.state`. A broadcast that does not lead on from that copy is answered with an error:
    nothing is computed at other weights than the server's.

    Where the server asks for correlated noise (`Private(correlated_noise=…)`), this mod counts the node's messages and
    tells the training function which slice of its records is next (`cepam-slice` of `cepam-slices` in its
    configuration; `privacy.slice_of` finds a record's slice by its own identifier alone). A server that asks again,
    backwards, too often or with another configuration is refused. With `cepam-correlated-noise-folder`, a folder, the
    noise state outlives the node.

    Where the configuration has `cepam-policy` and `cepam-account`, the node keeps to its operator's policy in every
    mode (docs/proofs/node-policy.md): offers below its floors or beyond its limits are refused, every message
    is charged on disk before it leaves, nothing plain leaves but metrics where the policy allows them, and
    `required=False` changes nothing. Unless the policy trusts the server, the node answers secure aggregation alone.

    Args:
        required: Refuse training messages without an offer. Default True.
        policy: The policy of nodes that have none of their own, as in Flower's simulation, whose nodes have no files.
            A node's own policy file always takes its place. Such a node's key and account live in the state of its run,
            and end with it. Default None: a node without a policy refuses secure aggregation.

    Raises:
        ValueError: For a policy that is not a `ClientPolicy`.
    """

    def __init__(self, required: bool = True, policy: ClientPolicy | None = None) -> None:
        if policy is not None:
            from cepam.policy import ClientPolicy

            if not isinstance(policy, ClientPolicy):
                raise ValueError(f"policy must be a cepam.flower.ClientPolicy, got {type(policy).__name__}")
        self.required, self.policy = required, policy

    def __call__(self, message: Message, context: Context, call_next: CallNext) -> Message:
        try:
            rules = enforced(context)
        except Declined as declined:
            return declining(message, declined)
        if (rules and rules.policy.trust != "server") or (
            message.has_content() and SECURE_AGGREGATION in message.content
        ):
            from cepam.flower.secure_aggregation.client_mod import answer

            return answer(message, context, call_next, self.policy)
        record = message.content.get(RECORD) if message.has_content() else None
        if record is None and message.metadata.message_type.split(".")[0] != MessageType.TRAIN:
            return self._evaluated(message, context, call_next, rules)
        try:
            if record is None:
                return self._without_offer(message, context, call_next, rules)
            check_app(call_next)
            del message.content[RECORD]
            offer = _offer(record, context)
            report = receive(message.content, context)
            reference = numpy_of(only_arrays(message.content))
            correlated = (
                None
                if offer.settings.correlated_noise is None
                else _correlated_noise(offer, reference, message.content, context)
            )
            if rules is not None:
                rules.check(offer.settings, *_size_and_start(offer, reference, correlated, rules))
            reply = self._sealed(_trained(message, context, call_next), reference, offer, context, correlated, rules)
            return reporting(reply, report)
        except Declined as declined:
            return declining(message, declined)
        except Exception as unexpected:  # its text may hold data, and Flower would send it
            log(WARNING, "cepam: no update leaves this node: %r", unexpected)
            return Message(Error(FAILED, "cepam: internal"), reply_to=message)

    def _evaluated(
        self, message: Message, context: Context, call_next: CallNext, rules: EnforcedPolicy | None
    ) -> Message:
        """The reply to a message that asks for no update, at the model that the server has published."""
        try:
            if rules is not None and not rules.policy.metrics:
                raise Declined("policy", "the node's policy lets no metrics leave: no evaluation, no query")
            report = receive(message.content, context) if message.has_content() else None
            reply = _trained(message, context, call_next)
            return reporting(reply if rules is None else evaluated(reply, rules), report)
        except Declined as declined:
            return declining(message, declined)

    def _without_offer(
        self, message: Message, context: Context, call_next: CallNext, rules: EnforcedPolicy | None
    ) -> Message:
        if self.required or rules is not None:
            raise Declined("no-offer", "the server does not use cepam.flower.Private (Uplink(required=False) sends)")
        log(WARNING, "cepam: the server does not use cepam.flower.Private; this update leaves as plain arrays")
        return call_next(message, context)

    def _sealed(
        self,
        reply: Message,
        reference: Arrays,
        offer: Offer,
        context: Context,
        correlated: ClientCorrelatedNoise | None,
        rules: EnforcedPolicy | None,
    ) -> Message:
        name, arrays = named_arrays(reply.content)
        try:
            update = to_vector(numpy_of(arrays), reference, difference=offer.settings.update == "parameters")
        except ValueError as odd:
            raise Declined("arrays", str(odd)) from odd
        if rules is not None:
            rules.charge(offer.settings, *_size_and_start(offer, reference, correlated, rules))
            if correlated is not None:
                correlated.charged = rules.account_name
            reply.content = RecordDict({name: arrays, **only_metrics(reply.content, rules)})
        sealed = seal_update(update, offer, _stored(context, offer), read_key_file(context, IDENTITY_FILE), correlated)
        _store(context, offer, sealed.chain)
        if correlated is not None:
            from cepam.flower.client_mod import keep

            keep(correlated, offer, context)
        if sealed.replaced:
            log(WARNING, "cepam: the update is not finite; it leaves as zero with its noise")
        log(INFO, "cepam: %d coordinates leave in %d bytes", len(update), len(sealed.message))
        for metrics in reply.content.metric_records.values():
            _make_finite(metrics)
        reply.content[name] = carry(sealed.message)
        reply.content[RECORD] = ConfigRecord(sealed.answer.to_fields())
        return reply


def _size_and_start(
    offer: Offer, reference: Arrays, correlated: ClientCorrelatedNoise | None, rules: EnforcedPolicy
) -> tuple[int, bool]:
    """How many coordinates the message has, and whether this account has yet to pay for correlated noise."""
    begins = correlated is None or correlated.charged != rules.account_name
    return count(reference) + offer.settings.beside, begins


def _correlated_noise(
    offer: Offer, reference: Arrays, content: RecordDict, context: Context
) -> ClientCorrelatedNoise | None:
    """The noise of the update; what it needs is loaded where a server asks for it."""
    from cepam.flower.client_mod import follow

    return follow(offer, reference, content, context)


def declining(message: Message, declined: Declined) -> Message:
    """The reply that tells a code and nothing else."""
    log(WARNING, "cepam: no reply leaves this node: %s", declined)
    code = RAISED if declined.code == "training" else FAILED
    return Message(Error(code, f"cepam: {declined.code}"), reply_to=message)


def reporting(reply: Message, report: ConfigRecord | None) -> Message:
    """The reply, saying which version of the model this node holds."""
    if report is not None and reply.has_content():
        reply.content[DOWNLINK] = report
    return reply


def _offer(record: object, context: Context) -> Offer:
    """The offer in a record, if it is for this run and node and from the server that the node knows."""
    if not isinstance(record, ConfigRecord):
        raise Declined("offer", "the server's offer is not a configuration record")
    try:
        offer = Offer.from_fields(record)
    except ValueError as unreadable:
        raise Declined("offer", str(unreadable)) from unreadable
    check_offer(offer, context.run_id, context.node_id, read_key_file(context, SERVER_FILE))
    return offer


def _trained(message: Message, context: Context, call_next: CallNext) -> Message:
    """The reply of the ClientApp; an error travels as a code alone, since its text may hold data.

    Whatever is raised costs this reply only, also what would end the process.
    """
    try:
        reply = call_next(message, context)
    except BaseException as raised:  # SystemExit and its like would end the process, and be seen
        if isinstance(raised, KeyError) and str(raised.args[:1]).startswith(LEGACY_RECORDS):
            raise Declined("legacy-app", LEGACY) from raised
        raise Declined("training", f"the ClientApp raised {raised!r}") from raised
    if reply.has_error():
        raise Declined("training", f"the ClientApp replied with an error: {reply.error.reason}")
    return reply


def check_app(call_next: CallNext) -> None:
    """Refuse a ClientApp of Flower's legacy interface, which cannot read the messages of these strategies."""
    made_by = (getattr(call_next, "__module__", ""), getattr(call_next, "__qualname__", ""))
    if made_by == ("flwr.clientapp.client_app", "ClientApp.__init__.<locals>.ffn"):
        raise Declined("legacy-app", LEGACY)


def only_arrays(content: RecordDict) -> ArrayRecord:
    """The one array record that a training message or reply holds; `Declined` if it holds another number."""
    return named_arrays(content)[1]


def named_arrays(content: RecordDict) -> tuple[str, ArrayRecord]:
    """That record and its name."""
    records = content.array_records
    if len(records) != 1:
        raise Declined("arrays", f"a training message or reply needs exactly one ArrayRecord, got {len(records)}")
    name, record = next(iter(records.items()))
    return str(name), record


def _make_finite(metrics: MetricRecord) -> None:
    """Set values that are not finite to 0: a reply that is dropped for one would tell that it was there."""
    for key, value in list(metrics.items()):
        if isinstance(value, list):
            metrics[key] = [number if math.isfinite(number) else type(number)(0) for number in value]
        elif not math.isfinite(value):
            metrics[key] = 0.0


def _stored(context: Context, offer: Offer) -> Chain | None:
    """The chain kept from earlier rounds, if it is the one that the server means and of this run."""
    kept = context.state.get(RECORD)
    if not isinstance(kept, ConfigRecord) or kept.get("run") != str(offer.run) or kept.get("name") != offer.chain:
        return None
    key, position = kept.get("key"), kept.get("position")
    if not isinstance(key, bytes) or not isinstance(position, int):
        return None
    return Chain(offer.chain, KeyChain(Key(key), position))


def _store(context: Context, offer: Offer, chain: Chain) -> None:
    fields = {"run": str(offer.run), "name": chain.name, "key": chain.secret, "position": chain.position}
    context.state[RECORD] = ConfigRecord(fields)


def read_key_file(context: Context, name: str) -> bytes | None:
    """The file that this node's configuration names so; None where it names none."""
    path = context.node_config.get(name)
    if not path:
        return None
    try:
        return Path(str(path)).expanduser().read_bytes()
    except OSError as unreadable:
        raise Declined("key-file", str(unreadable)) from unreadable
