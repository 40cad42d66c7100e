// What the scripts for Node share: a script is a list of calls, and prints one JSON line for each of them, as calls.py does.
//
//     node call_npm.mjs http://127.0.0.1:3000 KEY [NAME…]
//
// Packages are found next to the folder in CLIENT_PACKAGES.

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

export const QUESTION = "What is the capital of France?";
export const ANSWER = "The capital of France is Paris.";
export const [url, key, ...wanted] = process.argv.slice(2);

const require = createRequire(`${process.env.CLIENT_PACKAGES}/`);

/** A package of the client's folder. */
export async function load(name) {
  return import(pathToFileURL(require.resolve(name)).href);
}

/** Fails with what was found. */
export function check(holds, found) {
  if (!holds) throw new Error(`found ${JSON.stringify(found)}`);
}

/** Makes calls, each a pair of what it shows and a function, under their names; ends the process. */
export async function run(calls, close = async () => {}) {
  const unknown = wanted.filter((name) => !(name in calls));
  if (unknown.length) {
    console.error(`no such calls: ${unknown.join(", ")}`);
    process.exit(1);
  }
  let all = true;
  for (const [name, [detail, make]] of Object.entries(calls)) {
    if (wanted.length && !wanted.includes(name)) continue;
    const began = Date.now();
    const outcome = { name, ok: true, seconds: 0, detail };
    try {
      await make();
    } catch (error) {
      Object.assign(outcome, { ok: false, detail: String(error?.stack ?? error) });
    }
    outcome.seconds = (Date.now() - began) / 1000;
    all &&= outcome.ok;
    console.log(JSON.stringify(outcome));
  }
  await close();
  process.exit(all ? 0 : 1);
}
