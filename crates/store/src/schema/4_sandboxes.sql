-- Sandboxes of the gateway, from before they are made. One without an end when a server starts was lost with the last one.
CREATE TABLE gateway_sandbox (
    id         TEXT NOT NULL PRIMARY KEY,
    owner      TEXT NOT NULL, -- the key that made it
    labels     TEXT NOT NULL, -- JSON
    backend    TEXT NOT NULL,
    profile    TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    promise    TEXT,          -- the idempotency key that it stands for, and SHA-256 of the request
    body       BLOB,
    ended_ms   INTEGER,
    reason     TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX gateway_sandbox_end ON gateway_sandbox (ended_ms);
