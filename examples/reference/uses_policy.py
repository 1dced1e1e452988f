"""Every public name of `cepam.policy` at work: a node's policy and account."""

import tempfile
from dataclasses import replace
from pathlib import Path

from cepam import policy

trust: policy.Trust = "server"
own = policy.read_policy(b'noise_scale = 4.0\nclipping_norm = 1.0\nrounds = 100\nepsilon = 20.0\ntrust = "server"\n')
assert own == policy.ClientPolicy(noise_scale=4.0, clipping_norm=1.0, rounds=100, epsilon=20.0, trust=trust)
own.largest_epsilon()  # what the floors alone allow, in each mode

path = Path(tempfile.mkdtemp()) / "account.json"
account: policy.AccountStore = policy.FileAccount.create(path)  # once; then policy.FileAccount(path)
charge = policy.RoundCharge("server", noise_scale=4.0, clipping_norm=1.0, coordinates=1000)
with account.hold() as held:  # nobody else reads or writes meanwhile
    after: policy.AnsweredRounds = own.check_limits(held.answered, charge)
    account.commit(replace(held, answered=after))  # on disk; only now may the message leave
after.epsilon(1e-5)

try:
    own.check_noise_and_clip(noise_scale=1e-6, clipping_norm=1e4)
except policy.PolicyRefused as refused:
    print(refused)

path.write_bytes(b"damaged")
try:
    with account.hold():
        pass
except policy.AccountUnusable as lost:  # a node whose account is lost answers nothing
    print(lost)

simulated = policy.MemoryAccount()
with simulated.hold() as empty:
    assert empty == policy.NodeAccount()
    simulated.commit(empty.moved(policy.RunPlace(b"my run", 1, bytes(32))))  # secure aggregation keeps its place
