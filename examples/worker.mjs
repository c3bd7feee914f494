// A Foreman worker in plain Node (20 or newer, no packages): claim, start, heartbeat, complete.
//
//   node examples/worker.mjs
//   foreman submit --kind word_count --payload '{"text": "to be or not to be"}' --wait

import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";

const server = process.env.FOREMAN_URL ?? "http://127.0.0.1:8080";
const worker = `${hostname()}-${process.pid}-node`;
const slots = 4;
const leaseSeconds = Number(process.env.LEASE_SECONDS ?? 30);
// A cancel is noticed at a heartbeat, so these are more frequent than the lease alone would need.
const heartbeatMs = Math.min((leaseSeconds * 1000) / 3, 2000);

// --- the work: one function per kind -------------------------------------------------------------------------

const tasks = {
  async word_count(payload, { signal, progress }) {
    if (typeof payload.text !== "string") throw Object.assign(new Error("text is missing"), { code: "no_text" });
    const words = payload.text.split(/\s+/).filter(Boolean);
    const counts = {};
    for (const [index, word] of words.entries()) {
      counts[word] = (counts[word] ?? 0) + 1;
      if (payload.pause_ms) {
        await sleep(payload.pause_ms, undefined, { signal });
        await progress({ current: index + 1, total: words.length });
      }
    }
    return { words: words.length, counts };
  },
};

// --- the protocol --------------------------------------------------------------------------------------------

class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail ?? `HTTP ${status}`);
    Object.assign(this, { status, code: problem.code });
  }
}

async function post(path, body, signal) {
  const headers = { "content-type": "application/json" };
  if (process.env.FOREMAN_API_KEY) headers.authorization = `Bearer ${process.env.FOREMAN_API_KEY}`;
  const response = await fetch(server + path, { method: "POST", headers, body: JSON.stringify(body), signal });
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refused(response.status, answer);
  return answer;
}

// A settlement is sent until the server has answered: sending the very same one twice is safe. 409 means that
// the job is somebody else's by now, and that is an answer too.
async function settle(job, verb, fields = {}) {
  for (let pause = 100; ; pause = Math.min(pause * 2, 5000)) {
    try {
      await post(`/jobs/${job.job_id}/${verb}`, { lease_token: job.lease_token, ...fields });
      return true;
    } catch (error) {
      if (error.status === 409 || error.status === 404) {
        console.error(`${job.job_id}: not ours any more (${error.code})`);
        return false;
      }
      if (error.status >= 400 && error.status < 500 && error.status !== 429) throw error;
      await sleep(pause);
    }
  }
}

const running = new Map(); // job_id → the job's AbortController

async function run(job) {
  const controller = new AbortController();
  running.set(job.job_id, controller);
  const beat = setInterval(async () => {
    try {
      const lease = await post(`/jobs/${job.job_id}/heartbeat`, { lease_token: job.lease_token });
      if (lease.cancel_requested) controller.abort("cancelled");
    } catch (error) {
      if (error.status === 409) controller.abort("lost"); // other errors: the server is away, keep working
    }
  }, heartbeatMs);
  try {
    if (!(await settle(job, "start"))) return;
    const progress = (fields) => settle(job, "progress", fields);
    const result = await tasks[job.kind](job.payload, { signal: controller.signal, progress });
    await settle(job, "complete", { result });
  } catch (error) {
    if (controller.signal.reason === "lost") return;
    // Cancelled, or we are shutting down: giving the job up is the right answer to both.
    if (controller.signal.aborted) await settle(job, "release");
    else
      await settle(job, "fail", {
        error: { code: String(error.code ?? error.name), message: error.message },
        retryable: false,
      });
  } finally {
    clearInterval(beat);
    running.delete(job.job_id);
  }
}

const stopping = new AbortController();
for (const signal of ["SIGTERM", "SIGINT"]) process.once(signal, () => stopping.abort());

const jobs = new Set();
console.log(`${worker} takes ${Object.keys(tasks)} from ${server}`);
while (!stopping.signal.aborted) {
  if (jobs.size >= slots) {
    await Promise.race(jobs);
    continue;
  }
  try {
    const claim = {
      worker,
      kinds: Object.keys(tasks),
      limit: slots - jobs.size,
      lease_seconds: leaseSeconds,
      wait_seconds: 20,
    };
    const claimed = await post("/claims", claim, stopping.signal);
    for (const job of claimed.jobs) {
      const done = run(job).finally(() => jobs.delete(done));
      jobs.add(done);
    }
  } catch (error) {
    if (stopping.signal.aborted) break;
    console.error(`cannot claim: ${error.message}`);
    await sleep(1000);
  }
}
for (const controller of running.values()) controller.abort("shutdown");
await Promise.allSettled(jobs);
