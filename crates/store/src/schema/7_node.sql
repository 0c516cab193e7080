-- Starts of a server here, each with its end. One without an end when a server starts was killed.
CREATE TABLE node_boot (
    n        INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms    INTEGER NOT NULL,
    version  TEXT NOT NULL,
    kernel   TEXT NOT NULL,
    pid      INTEGER NOT NULL,
    ended_ms INTEGER,
    outcome  TEXT
) STRICT;

-- Every run and sandbox as a container, with its events as moments: written with the run's own rows, so that no run waits
-- for a further transaction.
CREATE TABLE container_inventory (
    n          INTEGER PRIMARY KEY AUTOINCREMENT, -- newest last; never used twice, so that it can be a cursor
    id         TEXT NOT NULL UNIQUE,
    owner      TEXT NOT NULL, -- the tenant
    kind       TEXT NOT NULL CHECK (kind IN ('managed', 'sandbox')),
    runtime    TEXT NOT NULL,
    image      TEXT NOT NULL,
    task       TEXT,
    job        TEXT,
    labels     TEXT NOT NULL, -- JSON
    trace      TEXT,
    status     TEXT NOT NULL CHECK (status IN ('created', 'running', 'exited', 'failed', 'lost')),
    exit_code  INTEGER,
    created_ms INTEGER NOT NULL,
    started_ms INTEGER,
    stopped_ms INTEGER,
    removed_ms INTEGER
) STRICT;
CREATE INDEX container_inventory_owner ON container_inventory (owner, n);
CREATE INDEX container_inventory_open ON container_inventory (n) WHERE stopped_ms IS NULL;
CREATE INDEX container_inventory_age ON container_inventory (created_ms);

CREATE VIEW container_event AS
    SELECT id, owner, 'created' AS event, created_ms AS at_ms FROM container_inventory
    UNION ALL SELECT id, owner, 'started', started_ms FROM container_inventory WHERE started_ms IS NOT NULL
    UNION ALL SELECT id, owner, 'stopped', stopped_ms FROM container_inventory WHERE stopped_ms IS NOT NULL
    UNION ALL SELECT id, owner, 'removed', removed_ms FROM container_inventory WHERE removed_ms IS NOT NULL;

-- What containers and the server itself wrote: one row for the lines that came together.
CREATE TABLE log_event (
    n           INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms       INTEGER NOT NULL,
    source_kind TEXT NOT NULL CHECK (source_kind IN ('service', 'container')),
    source_name TEXT NOT NULL, -- of a container its id
    owner       TEXT NOT NULL, -- empty: the node itself
    stream      TEXT NOT NULL CHECK (stream IN ('stdout', 'stderr')),
    bytes       INTEGER NOT NULL,
    lines       TEXT NOT NULL -- with line ends between them
) STRICT;
CREATE INDEX log_event_source ON log_event (source_kind, source_name, n);
CREATE INDEX log_event_age ON log_event (at_ms, bytes);
CREATE INDEX log_event_owner ON log_event (owner, bytes);
