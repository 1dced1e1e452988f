"""Every public name of `cepam.flare` at work: filters for NVIDIA FLARE."""

import cepam
from cepam.flare import PAYLOAD, Accounting, ClientFilter, Compression, Dropouts, ServerFilter, Target

server = ServerFilter(
    clip=cepam.L2(1.0), noise=cepam.Gaussian(0.2)
)  # in the server's task-data and task-result filters
client = ClientFilter()  # in the clients'
assert isinstance(PAYLOAD, str)  # where a sealed update lies in a result

accounting = Accounting(released="average", unit="client")  # the workflow publishes the plain average
target, padded = Target(2.0, rounds=50), Compression("E8", padding=512)
ServerFilter(
    clip=cepam.L2(1.0),
    epsilon=target,
    accounting=accounting,
    dropouts=Dropouts("compensate"),
    clients=8,
    compression=padded,
)
