-- Tables of a coordinator's journal, version 2. Token ids are blobs of little-endian 64-bit integers, log-probabilities of 32-bit floats;
-- what people read is text or JSON.

-- Finished completions; those of a step in `batches` never change.
CREATE TABLE samples (
    position INTEGER NOT NULL,           -- loader position of the prompt
    sample_index INTEGER NOT NULL,       -- index in the prompt's group
    step INTEGER,                        -- the step whose batch it is in; null while none is, and for ever where its group was dropped
    data_row INTEGER NOT NULL,           -- row of the data file
    reward REAL NOT NULL,
    finish_reason TEXT NOT NULL,
    prompt_text TEXT NOT NULL,
    completion_text TEXT NOT NULL,
    reward_components TEXT NOT NULL,     -- {"name": number}
    versions TEXT NOT NULL,              -- [{"version": "step-N.attempt-K", "tokens": number}], runs over the completion
    sampling TEXT NOT NULL,              -- sampling parameters as sent
    prompt_tokens BLOB NOT NULL,
    completion_tokens BLOB NOT NULL,
    sampler_logprobs BLOB NOT NULL,
    PRIMARY KEY (position, sample_index)
) STRICT;
CREATE INDEX samples_of_step ON samples (step);

-- Steps whose batch is fixed.
CREATE TABLE batches (
    step INTEGER PRIMARY KEY,
    samples INTEGER NOT NULL,
    next_position INTEGER NOT NULL,      -- loader positions below it are used up
    dropped_groups INTEGER NOT NULL,     -- groups left out, since their rewards teach nothing
    stale_samples INTEGER NOT NULL       -- samples made again, since they were too old
) STRICT;

-- Steps done, as first reported.
CREATE TABLE steps (
    step INTEGER PRIMARY KEY,
    attempt INTEGER NOT NULL,
    metrics TEXT NOT NULL                -- a line of metrics.jsonl
) STRICT;

CREATE TABLE evaluations (
    step INTEGER PRIMARY KEY,
    metrics TEXT NOT NULL                -- a line of evaluations.jsonl
) STRICT;

-- Complete checkpoints that are kept.
CREATE TABLE checkpoints (
    step INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    path TEXT NOT NULL,
    PRIMARY KEY (step, attempt)
) STRICT;

-- Engine events, orders, restarts.
CREATE TABLE events (
    id INTEGER PRIMARY KEY,
    at TEXT NOT NULL,                    -- RFC 3339, UTC
    kind TEXT NOT NULL,
    detail TEXT NOT NULL                 -- JSON
) STRICT;

-- Single values, by name.
CREATE TABLE state (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL                  -- JSON
) STRICT;
