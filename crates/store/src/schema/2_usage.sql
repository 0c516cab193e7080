-- A copy of the ledger for questions. It may be emptied at any time: it is filled again from the segments.
-- One row an attempt, from the moment it was reserved; until it is settled it counts in full.
CREATE TABLE usage_attempt (
    segment        TEXT NOT NULL,
    n              INTEGER NOT NULL, -- of the line that reserved
    at_ms          INTEGER NOT NULL,
    run            TEXT NOT NULL,
    session        TEXT NOT NULL,
    tenant         TEXT NOT NULL,
    door           TEXT NOT NULL,
    provider       TEXT NOT NULL,
    model          TEXT NOT NULL,
    operation      TEXT NOT NULL,
    attempt        INTEGER NOT NULL,
    price_book     TEXT NOT NULL,
    reserved       INTEGER NOT NULL, -- nano-dollars
    source         TEXT NOT NULL CHECK (source IN ('open', 'final', 'partial', 'estimated', 'reserved')),
    money          INTEGER NOT NULL,
    overrun        INTEGER NOT NULL,
    status         INTEGER NOT NULL,
    ending         TEXT NOT NULL,
    duration_ms    INTEGER NOT NULL,
    input          INTEGER NOT NULL,
    cache_read     INTEGER NOT NULL,
    cache_write_5m INTEGER NOT NULL,
    cache_write_1h INTEGER NOT NULL,
    audio_in       INTEGER NOT NULL,
    output         INTEGER NOT NULL,
    reasoning      INTEGER NOT NULL,
    audio_out      INTEGER NOT NULL,
    tool_requests  INTEGER NOT NULL,
    PRIMARY KEY (segment, n)
) STRICT, WITHOUT ROWID;

CREATE INDEX usage_by_time ON usage_attempt (at_ms);
CREATE INDEX usage_by_run ON usage_attempt (run);

-- How far each segment was read. What was read and is gone was taken away.
CREATE TABLE usage_segment (
    segment TEXT NOT NULL PRIMARY KEY,
    part    INTEGER NOT NULL,
    offset  INTEGER NOT NULL,
    n       INTEGER NOT NULL,
    hash    BLOB NOT NULL
) STRICT, WITHOUT ROWID;
