// pg-boss at the settings that served it best here; docs/benchmarks.md says which were tried.

import { Arrivals, closedLoop, FILL_BATCH, load, main, now, paced, payloadText, toldToStop } from "./measuring.mjs";

const { PgBoss } = load("pg-boss");

const QUEUE = "bench";
const LATENCY = { batchSize: 10, pollingIntervalSeconds: 0.5, notifyPollingIntervalSeconds: 0.5 };
const DRAIN = { batchSize: 1000, localConcurrency: 3, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 };

async function boss(dsn, connections, use, more = {}) {
  const started = new PgBoss({
    connectionString: dsn,
    max: connections,
    // On a machine that stalls it would rather give up than wait.
    connectionTimeoutMillis: 60_000,
    schedule: false,
    supervise: false,
    ...more,
  });
  started.on("error", (problem) => {
    throw problem;
  });
  await started.start();
  try {
    return await use(started);
  } finally {
    await started.stop({ graceful: false });
  }
}

async function install({ dsn }) {
  // Notices are what makes it start jobs at once.
  await boss(dsn, 1, (started) => started.createQueue(QUEUE, { notify: true }));
}

function enqueue({ dsn, callers, warmup, seconds }) {
  const payload = { text: payloadText() };
  return boss(dsn, callers, (started) => closedLoop(callers, () => started.send(QUEUE, payload), { warmup, seconds }));
}

function jobs(count) {
  return Array.from({ length: count }, () => ({ data: { text: payloadText() } }));
}

function bulk({ dsn, callers, warmup, seconds, rows }) {
  const many = jobs(rows);
  return boss(dsn, callers, (started) => closedLoop(callers, () => started.insert(QUEUE, many), { warmup, seconds, rows }));
}

function fill({ dsn, jobs: wanted }) {
  return boss(dsn, 1, async (started) => {
    for (let first = 0; first < wanted; first += FILL_BATCH) {
      await started.insert(QUEUE, jobs(Math.min(FILL_BATCH, wanted - first)));
    }
  });
}

function work({ dsn, settings = {} }) {
  return boss(dsn, 10, async (started) => {
    await started.work(QUEUE, { ...DRAIN, ...settings }, async () => undefined);
    await toldToStop();
  });
}

function listen({ dsn, expected }) {
  const arrivals = new Arrivals(expected);
  return boss(
    dsn,
    10,
    async (started) => {
      await started.work(QUEUE, LATENCY, async (batch) => batch.forEach((job) => arrivals.note(job.data.sent_at)));
      await toldToStop();
    },
    { useListenNotify: true },
  );
}

function submit({ dsn, rate, seconds }) {
  return boss(dsn, 16, (started) =>
    paced(() => started.send(QUEUE, { sent_at: now(), text: payloadText() }), { rate, seconds }),
  );
}

await main({ install, enqueue, bulk, fill, work, listen, submit });
