"""The state events of a job that lie in its own row, and how they are read together with those in `events`.

A claim, a start and a completion rewrite the job's row anyway: to add a line to its `history` costs a fraction of a row
in a table of its own, in its index and in the log. A line is `seq verb microseconds`, and JSON behind it where the event
has data; the verb tells the state. The first event (`enqueue`) follows from the row and is not written, unless it has
something to say. Everything else is a row of `events`: what is posted, what goes wrong, what operators and the sweeper
do; and claims and their like, too, once a history is long, or of a job from before there was any ('-').
"""

IN_EVENTS = "-"
# Beyond this the row would be moved out of line and rewritten as a whole with each event.
MAX_BYTES = 1000

# Whether the row `j` takes its next event itself.
TAKES_EVENTS = f"j.history <> '{IN_EVENTS}' AND length(j.history) < {MAX_BYTES}"

# The moment of the statement, written down once for all its rows.
_NOW = "(SELECT (extract(epoch FROM statement_timestamp()) * 1000000)::bigint::text)"


def line(seq: str, verb: str, data: str | None = None) -> str:
    """One line of a history, as an expression."""
    shown = "" if data is None else f" || ' ' || {data}"
    return f"{seq} || ' {verb} ' || {_NOW}{shown} || E'\\n'"


def of_row(job: str) -> str:
    """The events that the row of `jobs` under this name holds, as a subquery with the columns of `events`. (Lines are taken
    apart by their blanks: a regular expression, made anew for each row, took longer than all else.)"""
    return f"""(
        SELECT 1 AS seq, 'queued' AS type, 'queued' AS state, 'enqueue' AS reason, NULL AS data, {job}.created_at AS at
        WHERE {job}.history <> '{IN_EVENTS}' AND NOT starts_with({job}.history, '1 ')
        UNION ALL
        SELECT part.seq::int, entered.state, entered.state, part.verb,
            nullif(substr(line, length(part.seq) + length(part.verb) + length(part.at) + 4), ''),
            timestamptz 'epoch' + part.at::bigint * interval '1 microsecond'
        FROM unnest(string_to_array(rtrim({job}.history, E'\\n'), E'\\n')) AS line
        CROSS JOIN LATERAL (
            SELECT split_part(line, ' ', 1) AS seq, split_part(line, ' ', 2) AS verb, split_part(line, ' ', 3) AS at
        ) AS part
        CROSS JOIN LATERAL (
            SELECT CASE part.verb WHEN 'enqueue' THEN 'queued' WHEN 'claim' THEN 'loading' WHEN 'start' THEN 'working'
                ELSE 'done' END AS state
        ) AS entered
        WHERE {job}.history NOT IN ('', '{IN_EVENTS}')
    )"""


# The state events and what was posted, of all jobs: for those who look at a whole database.
ALL_EVENTS = f"""(
    SELECT j.id AS job_id, own.seq, own.type, own.state, own.reason, own.data, own.at
    FROM jobs j CROSS JOIN LATERAL {of_row("j")} AS own
    UNION ALL
    SELECT e.job_id, e.seq, e.type, e.state, e.reason, e.data, e.at FROM jobs j JOIN events e ON e.job_id = j.id
)"""
