"""The protocol that all integrations share: key agreement, offers, sealed updates, saved accounts.

A framework brings the connection and the hooks; nothing here knows which one it is. Internal: what users name of it is
in `cepam.flower` and `cepam.flare`.

- `agreement`: X25519, key chains, signatures, `Offer`, `Answer` and sealed updates
- `settings`: what the server tells a client to send
- `server`: offers, opened updates, dropout compensation
- `correlated_noise`: both ends of noise that later rounds cancel
- `models`: named arrays as one vector; on the public grid, its message, and who holds what
- `enforcement`: what a node's policy allows
- `account`: what the used replies cost, noise for a target, and the account on disk
"""
