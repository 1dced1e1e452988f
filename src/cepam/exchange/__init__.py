"""What all integrations share: key agreement, offers, sealed updates, and the account of what was published.

A framework brings the connection and the hooks; nothing here knows which one it is. Internal: what users name of it is
in `cepam.flower` and `cepam.flare`.

- `agreement`: X25519, key chains, signatures
- `messages`: `Offer` and `Answer`, the fields beside an update
- `uplink_settings`: what the server tells a client to send
- `vectors`: named arrays as one vector
- `client_end`, `server_end`: an update is sealed, and opened
- `inventory`, `parcels`, `downlink`: a model on the public grid, its way to a node, and who holds what
- `account`, `account_store`: what the used replies cost, kept on disk
"""
