// graphile-worker at the settings that served it best here; docs/benchmarks.md says which were tried.

import { Arrivals, closedLoop, FILL_BATCH, load, main, now, paced, payloadText, say, sleep, toldToStop } from "./measuring.mjs";

const { Logger, makeWorkerUtils, run, runMigrations } = load("graphile-worker");
const pg = load("pg");

const quiet = new Logger(() => () => undefined);
const LATENCY = { concurrentJobs: 10, maxPoolSize: 10 };
const DRAIN = {
  concurrentJobs: 200,
  maxPoolSize: 10,
  localQueue: { size: 2000 },
  completeJobBatchDelay: 0,
  failJobBatchDelay: 0,
};

async function utils(dsn, connections, use) {
  const pgPool = new pg.Pool({ connectionString: dsn, max: connections });
  const worker = await makeWorkerUtils({ pgPool, logger: quiet });
  try {
    return await use(worker);
  } finally {
    await worker.release();
  }
}

function job() {
  return { identifier: "noop", payload: { text: payloadText() } };
}

function runner(dsn, settings, task) {
  return run({
    connectionString: dsn,
    noHandleSignals: true,
    taskList: { noop: task },
    preset: { worker: { ...settings, logger: quiet } },
  });
}

async function install({ dsn }) {
  await runMigrations({ connectionString: dsn, logger: quiet });
}

function enqueue({ dsn, callers, warmup, seconds }) {
  const payload = { text: payloadText() };
  return utils(dsn, callers, (worker) => closedLoop(callers, () => worker.addJob("noop", payload), { warmup, seconds }));
}

function bulk({ dsn, callers, warmup, seconds, rows }) {
  const jobs = Array.from({ length: rows }, job);
  return utils(dsn, callers, (worker) => closedLoop(callers, () => worker.addJobs(jobs), { warmup, seconds, rows }));
}

function fill({ dsn, jobs }) {
  return utils(dsn, 1, async (worker) => {
    for (let first = 0; first < jobs; first += FILL_BATCH) {
      await worker.addJobs(Array.from({ length: Math.min(FILL_BATCH, jobs - first) }, job));
    }
  });
}

// A finished job is deleted, so the tables tell nothing: the first start is noted here, and the end is when the
// table was seen empty.
async function work({ dsn, jobs, patience, settings = {} }) {
  let began = 0;
  let started = 0;
  const running = await runner(dsn, { ...DRAIN, ...settings }, () => {
    began ||= performance.now();
    started += 1;
  });
  const watcher = new pg.Client({ connectionString: dsn });
  await watcher.connect();
  const left = async () => (await watcher.query("SELECT count(*)::int AS left FROM graphile_worker._private_jobs")).rows[0].left;
  const givesUp = performance.now() + patience * 1000;
  while (started < jobs && performance.now() < givesUp) await sleep(2);
  let remaining = await left();
  while (remaining && started >= jobs && performance.now() < givesUp) {
    await sleep(2);
    remaining = await left();
  }
  say({ finished: jobs - remaining, seconds: (performance.now() - began) / 1000 });
  await toldToStop();
  await running.stop();
}

async function listen({ dsn, expected }) {
  const arrivals = new Arrivals(expected);
  const running = await runner(dsn, LATENCY, (payload) => arrivals.note(payload.sent_at));
  await toldToStop();
  await running.stop();
}

function submit({ dsn, rate, seconds }) {
  return utils(dsn, 16, (worker) =>
    paced(() => worker.addJob("noop", { sent_at: now(), text: payloadText() }), { rate, seconds }),
  );
}

await main({ install, enqueue, bulk, fill, work, listen, submit });
