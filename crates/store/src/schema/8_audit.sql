-- What is known of the audit beside its files, so that what is cut off, taken away or put back is found.

-- Where each file begins: the number and the hash of the line before it. Of those that were removed the row stays.
CREATE TABLE audit_parts (
    journal TEXT NOT NULL,
    part INTEGER NOT NULL,
    n INTEGER NOT NULL,
    hash BLOB NOT NULL,
    began_ms INTEGER NOT NULL,
    removed_ms INTEGER,
    PRIMARY KEY (journal, part)
) STRICT;

-- The last line that was made sure of on the disk.
CREATE TABLE audit_heads (
    journal TEXT PRIMARY KEY NOT NULL,
    part INTEGER NOT NULL,
    n INTEGER NOT NULL,
    hash BLOB NOT NULL,
    at_ms INTEGER NOT NULL
) STRICT;
