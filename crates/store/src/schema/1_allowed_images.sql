-- Images that may be used. No pin is the empty text: NULLs would not be equal to each other.
CREATE TABLE allowed_image (
    pattern      TEXT NOT NULL,
    pin          TEXT NOT NULL,
    capabilities TEXT NOT NULL, -- separated by spaces
    marked       INTEGER CHECK (marked IN (0, 1)), -- what its label said, if it was known
    note         TEXT NOT NULL,
    added_by     TEXT NOT NULL,
    added_at_ms  INTEGER NOT NULL,
    PRIMARY KEY (pattern, pin)
) STRICT, WITHOUT ROWID;

-- Who changed the list, and what was refused.
CREATE TABLE image_trail (
    id    INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms INTEGER NOT NULL,
    who   TEXT NOT NULL,
    what  TEXT NOT NULL CHECK (what IN ('allowed', 'disallowed', 'refused')),
    image TEXT NOT NULL,
    about TEXT NOT NULL
) STRICT;

CREATE TRIGGER image_trail_is_not_rewritten BEFORE UPDATE ON image_trail
BEGIN SELECT RAISE(ABORT, 'the trail is only added to'); END;

CREATE TRIGGER image_trail_is_not_shortened BEFORE DELETE ON image_trail
BEGIN SELECT RAISE(ABORT, 'the trail is only added to'); END;
