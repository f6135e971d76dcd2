-- Tables of a coordinator's journal, version 3. Token ids are blobs of little-endian 64-bit
-- integers, log-probabilities of 32-bit floats; what people read is text or JSON.

-- Finished samples; those of a step in `batches` never change.
CREATE TABLE IF NOT EXISTS samples (
    position INTEGER NOT NULL,           -- loader position of the prompt
    sample_index INTEGER NOT NULL,       -- index in the prompt group
    step INTEGER,                        -- step whose batch has it; null for pending samples and
                                         -- dropped groups
    data_row INTEGER NOT NULL,           -- row of the data file
    reward REAL NOT NULL,
    finish_reason TEXT NOT NULL,
    reward_components TEXT NOT NULL,     -- {"name": number}
    turn_rewards TEXT NOT NULL,          -- [number], one for each turn
    metadata TEXT NOT NULL,              -- {"name": value}
    sampling TEXT NOT NULL,              -- sampling parameters as sent
    segments TEXT NOT NULL,              -- [{"turn", "tokens", "trained", "logprobs", "versions":
                                         -- [{"version", "tokens"}], "text"}];
                                         -- tokens and logprobs are numbers of entries of the blobs
    tokens BLOB NOT NULL,                -- of all segments, one after the other
    sampler_logprobs BLOB NOT NULL,      -- of the sampled segments, one after the other; after
                                         -- those of a segment, "teacher_logprobs" of the teacher
    PRIMARY KEY (position, sample_index)
) STRICT;
CREATE INDEX IF NOT EXISTS samples_of_step ON samples (step);

-- Steps whose batch is fixed.
CREATE TABLE IF NOT EXISTS batches (
    step INTEGER PRIMARY KEY,
    samples INTEGER NOT NULL,
    next_position INTEGER NOT NULL,      -- loader positions below it are used up
    dropped_groups INTEGER NOT NULL,     -- groups left out, since their rewards teach nothing
    stale_samples INTEGER NOT NULL       -- samples made again, since they were too old
) STRICT;

-- What was rejected while the batch of a step was sampled; no row if nothing was.
CREATE TABLE IF NOT EXISTS rejections (
    step INTEGER PRIMARY KEY,
    samples INTEGER NOT NULL,            -- rejected tries of samples
    groups INTEGER NOT NULL              -- dropped groups whose samples were all rejected
) STRICT;

-- Exceptions to `next_position` of a step: positions below it whose groups the batches up to the
-- step passed over (`batchOrder: Finished`).
CREATE TABLE IF NOT EXISTS passed_over (
    step INTEGER NOT NULL,
    position INTEGER NOT NULL,
    PRIMARY KEY (step, position)
) STRICT;

-- What groups of `trainer.groups` inferred of the batches that a kept checkpoint needs.
CREATE TABLE IF NOT EXISTS inferred (
    step INTEGER PRIMARY KEY,
    seconds REAL NOT NULL,
    logprobs BLOB NOT NULL               -- of the trained tokens of all samples, one after the other
) STRICT;

-- Pass rates of rows in training, which a curriculum needs.
CREATE TABLE IF NOT EXISTS pass_rates (
    position INTEGER PRIMARY KEY,        -- loader position of the prompt group
    part INTEGER NOT NULL,               -- index of the part of a mixture; 0 without one
    data_row INTEGER NOT NULL,           -- row of the part's files
    epoch INTEGER NOT NULL,              -- epoch of the part
    correct INTEGER NOT NULL,            -- samples that were correct
    samples INTEGER NOT NULL
) STRICT;

-- Steps done, as first reported.
CREATE TABLE IF NOT EXISTS steps (
    step INTEGER PRIMARY KEY,
    attempt INTEGER NOT NULL,
    metrics TEXT NOT NULL                -- a line of metrics.jsonl
) STRICT;

CREATE TABLE IF NOT EXISTS evaluations (
    step INTEGER PRIMARY KEY,
    metrics TEXT NOT NULL                -- a line of evaluations.jsonl
) STRICT;

-- Complete checkpoints that are kept.
CREATE TABLE IF NOT EXISTS checkpoints (
    step INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    path TEXT NOT NULL,
    PRIMARY KEY (step, attempt)
) STRICT;

-- Engine events, orders, restarts.
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY,
    at TEXT NOT NULL,                    -- RFC 3339, UTC
    kind TEXT NOT NULL,
    detail TEXT NOT NULL                 -- JSON
) STRICT;

-- Single values, by name.
CREATE TABLE IF NOT EXISTS state (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL                  -- JSON
) STRICT;
