-- Who works on a task of his tenant's, until when, and how far it has come. One at a time.
CREATE TABLE workflow (
    owner       TEXT NOT NULL,
    task        TEXT NOT NULL,
    run         TEXT NOT NULL,
    holder      TEXT NOT NULL,
    idempotency TEXT,             -- what the request that began it was called
    lease_ms    INTEGER NOT NULL, -- how long each renewal holds
    expires_ms  INTEGER NOT NULL,
    checkpoint  TEXT,             -- JSON
    PRIMARY KEY (owner, task)
) STRICT, WITHOUT ROWID;
CREATE INDEX workflow_age ON workflow (expires_ms);
