"""The protocol that all integrations share: key agreement, offers, sealed updates, saved accounts.

A framework brings the connection and the hooks; nothing here knows which one it is. Internal: what users name of it is
in `cepam.flower` and `cepam.flare`.

- `agreement`: X25519, key chains, signatures
- `messages`: `Offer` and `Answer`, the fields beside an update
- `settings`: what the server tells a client to send
- `vectors`: named arrays as one vector
- `client`, `server`: an update is sealed, and opened
- `model_layout`, `broadcast_message`, `downlink`: a model on the public grid, its message, and who holds what
- `accounting`, `saved_account`: what the used replies cost, kept on disk
"""
