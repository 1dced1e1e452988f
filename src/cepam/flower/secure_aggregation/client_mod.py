"""The client's half of secure aggregation: each stage is answered by the node's rules.

Nothing of what the ClientApp replies leaves but its update, masked: no metrics, no other record, no text of an error.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from logging import INFO, WARNING, getLogger
from typing import Any

import numpy.typing as npt
from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict

from cepam.errors import MalformedMessage
from cepam.flower.client_mod import (
    ACCOUNT_FILE,
    CLIP,
    DIVISOR,
    FAILED,
    IDENTITY_FILE,
    POLICY_FILE,
    RECORD_SAMPLING_RATE,
    SECURE_AGGREGATION,
    SERVER_FILE,
    CallNext,
    add_to_config,
    carry,
    check_app,
    declining,
    enforced,
    named_arrays,
    numpy_of,
    only_arrays,
    read_key_file,
    receive,
    reporting,
)
from cepam.flower.secure_aggregation.transport import check_value, run_bytes, secagg_message, statement
from cepam.policy import AccountUnusable, ClientPolicy, FileAccount
from cepam.protocol.agreement import RECORD, Declined, canonical, public_of, sign, verify
from cepam.protocol.models import count, to_vector
from cepam.secure_aggregation.client import SecAggClient
from cepam.secure_aggregation.messages import (
    MAGIC,
    HelloRequest,
    RefusalReply,
    RepairRequest,
    TrainRequest,
    UnmaskRequest,
)
from cepam.secure_aggregation.roster import SecAggRefused
from cepam.secure_aggregation.settings import SecAggSettings
from cepam.secure_aggregation.sketch import Sketch

COHORT_FILE = "cepam-cohort"


def secagg_client(context: Context, policy: ClientPolicy | None = None) -> SecAggClient:
    """The node that this configuration describes, with the secrets that `context.state` holds; `Declined` if none.

    Args:
        context: The node's context; a policy file that its configuration names always decides.
        policy: The ClientApp's policy, for nodes of a simulation, which have no file.
    """
    rules, key = enforced(context), read_key_file(context, IDENTITY_FILE)
    if policy is not None and rules is None:
        from cepam.flower.secure_aggregation.simulated import simulated_node

        return simulated_node(context, policy, _kept_state(context))
    if rules is None or key is None:
        raise Declined(
            "policy",
            f"secure aggregation needs {POLICY_FILE}, {ACCOUNT_FILE} and {IDENTITY_FILE} in the node's configuration; "
            "in a simulation, Uplink(policy=ClientPolicy(…)) in the ClientApp",
        )
    try:
        identity, cohort = public_of(key), read_key_file(context, COHORT_FILE)
        own = rules.policy if cohort is None else replace(rules.policy, cohort=read_cohort(cohort))
    except (TypeError, ValueError) as unfit:
        raise Declined("policy", f"the node's cohort or key cannot be read: {unfit}") from unfit
    return SecAggClient(context.node_id, identity, partial(sign, key), verify, own, rules.account, _kept_state(context))


def read_cohort(text: bytes) -> frozenset[bytes]:
    """The identities in a file with one OpenSSH public key a line; lines that start with # are left out."""
    lines = (line.strip() for line in text.splitlines())
    found = frozenset(canonical(line) for line in lines if line and not line.startswith(b"#"))
    if not found:
        raise ValueError("the cohort names nobody")
    return found


def keep_state(context: Context, node: SecAggClient) -> None:
    """Keep the node's secrets as it left them, for the next message."""
    context.state[SECURE_AGGREGATION] = ConfigRecord({"state": node.state})
    if not isinstance(node.account, FileAccount):
        node.account.keep(context)  # type: ignore[attr-defined]  # a simulated node's


def _kept_state(context: Context) -> bytes:
    kept = context.state.get(SECURE_AGGREGATION)
    state = kept.get("state") if isinstance(kept, ConfigRecord) else None
    return state if isinstance(state, bytes) else b""


log = getLogger("flwr").log  # Flower's own log, which `flwr run --stream` shows


def answer(message: Message, context: Context, call_next: CallNext, policy: ClientPolicy | None = None) -> Message:
    """The node's answer to one stage of secure aggregation, or a refusal; to any other message a refusal.

    `policy` is the ClientApp's, for nodes of a simulation.
    """
    try:
        check_app(call_next)
        request = _request(message, context)
        node = secagg_client(context, policy)
        # User code sees neither the node's secrets nor the message of the sum.
        for hidden in (context.state, message.content):
            hidden.pop(SECURE_AGGREGATION, None)
        try:
            return _answered(node, request, message, context, call_next)
        except SecAggRefused as refused:
            log(WARNING, "cepam: refused: %s", refused)
            return _reply(message, RefusalReply(refused.kind).encode())
        finally:
            keep_state(context, node)
    except Declined as declined:
        return declining(message, declined)
    except AccountUnusable as unusable:
        return declining(message, Declined("policy", str(unusable)))
    except MalformedMessage as malformed:
        return declining(message, Declined("offer", str(malformed)))
    except Exception as unexpected:  # its text may hold data: only its kind is agreed, and only to this node's log
        log(WARNING, "cepam: nothing leaves this node: %s %s", type(unexpected).__name__, _os_error(unexpected))
        return Message(Error(FAILED, "cepam: internal"), reply_to=message)


def _request(message: Message, context: Context) -> bytes:
    """The request of a sum that this message carries, signed by the server that this node knows if it knows one."""
    if message.metadata.message_type.split(".")[0] != MessageType.TRAIN:
        raise Declined("secure-aggregation-only", "this node answers for sums alone: no evaluation, no query")
    try:
        request = secagg_message(message.content)
    except ValueError as absent:
        raise Declined("secure-aggregation-only", str(absent)) from absent
    server = read_key_file(context, SERVER_FILE)
    if server is not None:
        signature = _fields(message).get("signature")
        said = statement(context.run_id, context.node_id, request)
        if not isinstance(signature, bytes) or not verify(server, said, signature):
            raise Declined("unsigned", "the server's request is not signed by the key that this node knows")
    return request


def _answered(node: SecAggClient, request: bytes, message: Message, context: Context, call_next: CallNext) -> Message:
    """The answer to the stage that the request's own number names."""
    code = request[len(MAGIC) + 1] if len(request) > len(MAGIC) + 1 else 0
    if code == HelloRequest.code:
        if HelloRequest.decode(request).run != run_bytes(context.run_id):
            raise SecAggRefused("position", "the request is for another run")
        return _reply(message, node.hello(request))
    if code == RepairRequest.code:
        return _reply(message, node.repair(request))
    if code == UnmaskRequest.code:
        return _reply(message, node.unmask(request))
    if code != TrainRequest.code:
        raise MalformedMessage("not a request of a sum")
    return _trained(node, request, message, context, call_next)


def _trained(node: SecAggClient, request: bytes, message: Message, context: Context, call_next: CallNext) -> Message:
    """The masked update; whatever the ClientApp does, what leaves has the length and the noise of any other."""
    received = TrainRequest.decode(request)
    update = _fields(message).get("update")
    if update not in ("parameters", "gradient"):
        raise Declined("offer", "the server does not say what the reply should hold")
    message.content.pop(RECORD, None)
    report = receive(message.content, context)
    reference = numpy_of(only_arrays(message.content))
    sketch = _sketch(received.settings, count(reference))
    about = message.metadata
    check = check_value(message.content, update, context.run_config, about.message_type, about.group_id)

    def work(settings: SecAggSettings) -> npt.NDArray[Any]:
        add_to_config(message.content, _agreed(settings))
        reply = call_next(message, context)
        found = to_vector(numpy_of(named_arrays(reply.content)[1]), reference, difference=update == "parameters")
        return found if sketch is None else sketch.apply(found)

    masked = node.train(request, check, work, count(reference))
    log(INFO, "cepam: %d coordinates leave masked in %d bytes", received.settings.coordinates, len(masked))
    return reporting(_reply(message, masked), report)


def _agreed(settings: SecAggSettings) -> dict[str, float]:
    """What the training function gets about the round: numbers that passed this node's policy.

    An offer with a larger clip or sampling rate, or a smaller batch, than the policy was refused before.
    """
    agreed = {RECORD_SAMPLING_RATE: settings.record_sampling_rate}
    return {**agreed, CLIP: settings.clip, DIVISOR: settings.batch} if settings.batch else agreed


def _sketch(settings: SecAggSettings, coordinates: int) -> Sketch | None:
    """The map to fewer numbers than the model has, where the round asks for fewer; the node clips after it.

    Settings and model fix it, and the masks bind both: nodes with different maps open no sum.
    """
    if settings.coordinates == coordinates:
        return None
    if settings.coordinates > coordinates:
        raise Declined("arrays", f"the model has {coordinates} coordinates, not {settings.coordinates}")
    if settings.batch:
        raise SecAggRefused("policy", "examples are clipped before the map here, which bounds nothing after it")
    return Sketch.of(settings, coordinates)


def _os_error(raised: Exception) -> str:
    """What the operating system says of a file that cannot be read or written, in its own words."""
    return f"({raised.strerror})" if isinstance(raised, OSError) and raised.strerror else ""


def _fields(message: Message) -> ConfigRecord:
    record = message.content.get(RECORD)
    return record if isinstance(record, ConfigRecord) else ConfigRecord()


def _reply(message: Message, said: bytes) -> Message:
    return Message(RecordDict({SECURE_AGGREGATION: carry(said)}), reply_to=message)
