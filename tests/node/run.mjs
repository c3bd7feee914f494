// One call of a real client from npm, told line by line as JSON. clients.py starts this and reads the lines:
//
//   {"said": …}    the answer, or each piece of it where it comes in pieces
//   {"failed": …}  the error that the client raised, with what it says of itself
//
// The call comes as JSON on standard input: which client, its options, the method by its path, and arguments.

import { createRequire } from "node:module";
import { text } from "node:stream/consumers";

const load = createRequire(`${process.env.NODE_CLIENTS}/package.json`);

const CLIENTS = {
  anthropic: (baseURL, options) =>
    new (load("@anthropic-ai/sdk").Anthropic)({ baseURL, apiKey: "none", maxRetries: 0, ...options }),
  ollama: (host, options) => new (load("ollama").Ollama)({ host, ...options }),
  openai: (url, options) =>
    new (load("openai").OpenAI)({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0, ...options }),
};

const tell = (line) => process.stdout.write(JSON.stringify(line) + "\n");

// {"$file": {"name", "text"}} stands for a file to upload.
async function asArgument(value) {
  if (value === null || typeof value !== "object") return value;
  if (value.$file) return load("openai").toFile(Buffer.from(value.$file.text), value.$file.name);
  if (Array.isArray(value)) return Promise.all(value.map(asArgument));
  const entries = Object.entries(value).map(async ([name, each]) => [name, await asArgument(each)]);
  return Object.fromEntries(await Promise.all(entries));
}

async function tellAll(answer, most) {
  if (answer instanceof Response) {
    tell({ said: await answer.text() });
  } else if (answer && typeof answer[Symbol.asyncIterator] === "function") {
    let told = 0;
    for await (const piece of answer) {
      tell({ said: piece });
      told += 1;
      // Leaving the loop hangs up.
      if (told === most) break;
    }
  } else {
    tell({ said: answer ?? null });
  }
}

function problem(error) {
  return {
    name: error.constructor?.name ?? "Error",
    message: error.message,
    status: error.status ?? error.status_code ?? null,
    code: error.code ?? null,
    type: error.type ?? null,
    body: error.error ?? null,
  };
}

const asked = JSON.parse(await text(process.stdin));
const client = CLIENTS[asked.client](asked.url, asked.options);
const path = asked.method.split(".");
const method = path.pop();
const owner = path.reduce((found, name) => found[name], client);
try {
  const given = await Promise.all(asked.arguments.map(asArgument));
  const begun = owner[method](...given);
  // Helpers gather a stream by themselves: `then` is what is asked of them.
  await tellAll(asked.then ? await begun[asked.then]() : await begun, asked.most);
} catch (error) {
  tell({ failed: problem(error) });
}
