-- Segments of the ledger that were taken away because they were old; what they said stays in `usage_attempt`, under a
-- name that no segment can have. Not done: its files may still be there.
CREATE TABLE usage_retired (
    name    TEXT NOT NULL PRIMARY KEY, -- under which its attempts stay
    segment TEXT NOT NULL,
    n       INTEGER NOT NULL,
    hash    BLOB NOT NULL,
    at_ms   INTEGER NOT NULL,
    done    INTEGER NOT NULL CHECK (done IN (0, 1))
) STRICT, WITHOUT ROWID;
CREATE INDEX usage_retired_open ON usage_retired (segment) WHERE done = 0;
