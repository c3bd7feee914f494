// How rates and latencies are taken, for peers in JavaScript: the same as benchmarks/measuring.py and scripting.py.

import { createRequire } from "node:module";
import { join } from "node:path";

const PAYLOAD_BYTES = 300;

export const FILL_BATCH = 1000;

// The peers are installed beside this checkout's own files, in the folder that the harness names first.
export const load = createRequire(join(process.argv[2], "package.json"));

export function payloadText() {
  return "x".repeat(PAYLOAD_BYTES - '{"text":""}'.length);
}

export function say(value) {
  process.stdout.write(JSON.stringify(value) + "\n");
}

export function sleep(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

// In milliseconds, comparable between processes, and finer than Date.now().
export function now() {
  return performance.timeOrigin + performance.now();
}

export function toldToStop() {
  return new Promise((resolve) => process.once("SIGTERM", resolve));
}

function percentile(values, fraction) {
  if (!values.length) throw new Error("no values were measured");
  const ordered = values.toSorted((a, b) => a - b);
  return ordered[Math.min(ordered.length - 1, Math.floor(fraction * ordered.length))];
}

// Each caller calls again as soon as it was answered; only calls that end inside the window count.
export async function closedLoop(callers, call, { warmup, seconds, rows = 1 }) {
  const opens = performance.now() + warmup * 1000;
  const closes = opens + seconds * 1000;
  const durations = [];

  async function keepCalling() {
    let began = performance.now();
    while (began < closes) {
      await call();
      const ended = performance.now();
      if (opens <= ended && ended < closes) durations.push(ended - began);
      began = ended;
    }
  }

  await Promise.all(Array.from({ length: callers }, keepCalling));
  return {
    per_second: (durations.length * rows) / seconds,
    p50_ms: percentile(durations, 0.5),
    p99_ms: percentile(durations, 0.99),
  };
}

// Open loop: every departure leaves on time, answered or not; returns how many were sent.
export async function paced(send, { rate, seconds }) {
  const start = performance.now();
  const count = Math.round(rate * seconds);
  const running = [];
  for (let position = 0; position < count; position++) {
    // Shaken, so as not to beat with anyone's polling.
    const departure = (1000 * (position + 0.5 + (Math.random() - 0.5) * 0.8)) / rate;
    const wait = start + departure - performance.now();
    if (wait > 0) await sleep(wait);
    running.push(send(position));
  }
  await Promise.all(running);
  return count;
}

// Says that the worker is there at the first job, which does not count, and all latencies once they came.
export class Arrivals {
  #latencies = [];
  #expected;

  constructor(expected) {
    this.#expected = expected;
  }

  note(sentAt) {
    this.#latencies.push((now() - sentAt) / 1000);
    if (this.#latencies.length === 1) say("ready");
    if (this.#latencies.length === 1 + this.#expected) say(this.#latencies.slice(1));
  }
}

export async function main(verbs) {
  const [verb, argument] = process.argv.slice(3);
  if (!(verb in verbs)) throw new Error(`usage: FOLDER ${Object.keys(verbs).join("|")} '<json arguments>'`);
  say((await verbs[verb](JSON.parse(argument))) ?? null);
  // Pools and timers that are still there keep nothing waiting.
  process.exit(0);
}
