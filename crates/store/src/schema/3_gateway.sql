-- Keys of the gateway. Tokens are nowhere: only a hash of each.
CREATE TABLE gateway_key (
    id         TEXT NOT NULL PRIMARY KEY,
    name       TEXT NOT NULL,
    hash       BLOB NOT NULL,
    scopes     TEXT NOT NULL, -- names, with spaces between
    created_ms INTEGER NOT NULL,
    expires_ms INTEGER,
    revoked_ms INTEGER
) STRICT, WITHOUT ROWID;

-- Runs that the gateway accepted, from before they start. What is not final when a server starts has no owner any more.
CREATE TABLE gateway_run (
    n           INTEGER PRIMARY KEY AUTOINCREMENT, -- newest last; never used twice, so that it can be a cursor
    id          TEXT NOT NULL UNIQUE,
    owner       TEXT NOT NULL, -- the key that made it
    task        TEXT,
    job         TEXT,
    status      TEXT NOT NULL,
    is_final    INTEGER NOT NULL,
    accepted_ms INTEGER NOT NULL,
    result      TEXT           -- JSON, with its output bounded
) STRICT;
CREATE INDEX gateway_run_owner ON gateway_run (owner, n);
CREATE INDEX gateway_run_open ON gateway_run (n) WHERE is_final = 0;

-- Which run an idempotency key stands for.
CREATE TABLE gateway_promise (
    owner TEXT NOT NULL,
    name  TEXT NOT NULL,
    body  BLOB NOT NULL, -- SHA-256 of the request
    run   TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    PRIMARY KEY (owner, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX gateway_promise_age ON gateway_promise (at_ms);
