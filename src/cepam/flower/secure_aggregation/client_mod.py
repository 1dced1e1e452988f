"""The client's half of secure aggregation: each stage is answered by the node's rules.

Nothing of what the ClientApp replies leaves but its update, masked: no metrics, no other record, no text of an error.
"""

from __future__ import annotations

from logging import INFO, WARNING, getLogger
from typing import Any

import numpy.typing as npt
from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict

from cepam.errors import MalformedMessage
from cepam.flower.arrays import SECURE_AGGREGATION, carry, numpy_of
from cepam.flower.client_correlated_noise import CLIP, DIVISOR, RECORD_SAMPLING_RATE, add_to_config
from cepam.flower.client_mod import (
    FAILED,
    SERVER_FILE,
    CallNext,
    check_app,
    declining,
    named_arrays,
    only_arrays,
    read_key_file,
    reporting,
)
from cepam.flower.client_model import receive
from cepam.flower.secure_aggregation.client import keep_state, secagg_client
from cepam.flower.secure_aggregation.records import check_value, run_bytes, secagg_message, statement
from cepam.policy import AccountUnusable, ClientPolicy
from cepam.protocol.agreement import verify
from cepam.protocol.client import Declined
from cepam.protocol.messages import RECORD
from cepam.protocol.vectors import count, to_vector
from cepam.secure_aggregation.client import SecAggClient
from cepam.secure_aggregation.messages import (
    MAGIC,
    HelloRequest,
    RefusalReply,
    RepairRequest,
    TrainRequest,
    UnmaskRequest,
)
from cepam.secure_aggregation.refusal import SecAggRefused
from cepam.secure_aggregation.settings import SecAggSettings
from cepam.secure_aggregation.sketch import Sketch

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

    Settings and model fix it, and the masks bind both: nodes that were told of different maps open no sum.
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
