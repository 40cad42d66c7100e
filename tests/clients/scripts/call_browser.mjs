// A page of another origin in headless Chromium, with a key: what preflights allow, and what a script may read.

import { createServer } from "node:http";
import { ANSWER, QUESTION, check, key, load, run, url } from "./calls.mjs";

const { default: { chromium } } = await load("playwright-core");
const site = createServer((_, response) => response.setHeader("content-type", "text/html").end("<title>page</title>"));
await new Promise((done) => site.listen(0, "127.0.0.1", done));
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] });
const page = await browser.newPage();
await page.goto(`http://127.0.0.1:${site.address().port}/`);

const greedy = { model: "tgi", messages: [{ role: "user", content: QUESTION }], temperature: 0, max_tokens: 40 };

/** What a script of the page gets. */
function fetched(path, body, more = {}) {
  const headers = { "content-type": "application/json", authorization: `Bearer ${key}`, ...more };
  return page.evaluate(async ([address, given]) => {
    const response = await fetch(address, given);
    return { status: response.status, id: response.headers.get("x-request-id"), warning: response.headers.get("x-warning"), text: await response.text() };
  }, [`${url}${path}`, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body) }]);
}

await run({
  chat: ["A chat with a key.", async () => {
    const made = await fetched("/v1/chat/completions", greedy);
    check(made.status === 200 && JSON.parse(made.text).choices[0].message.content === ANSWER, made);
  }],
  client_headers: ["The headers that the openai package sends from browsers.", async () => {
    const names = ["lang", "package-version", "os", "arch", "runtime", "runtime-version", "retry-count", "timeout"];
    const made = await fetched("/v1/chat/completions", greedy, Object.fromEntries(names.map((name) => [`x-stainless-${name}`, "1"])));
    check(made.status === 200, made);
  }],
  stream: ["A stream is read to its end.", async () => {
    const made = await fetched("/v1/chat/completions", { ...greedy, stream: true });
    check(made.text.trim().endsWith("data: [DONE]"), made);
  }],
  native: ["TGI's own route.", async () => {
    const made = await fetched("/generate", { inputs: "The capital of France is", parameters: { max_new_tokens: 6 } });
    check(made.text.includes("Paris"), made);
  }],
  readable_headers: ["The script may read the headers of a response.", async () => {
    const made = await fetched("/v1/chat/completions", { ...greedy, user: "me" });
    check(made.id && made.warning === "ignored fields: user", made);
  }],
  readable_errors: ["The script may read errors: of a wrong key, of a wrong route, of a wrong value.", async () => {
    check((await fetched("/v1/chat/completions", greedy, { authorization: "Bearer wrong" })).status === 401, 401);
    check((await fetched("/nowhere", greedy)).status === 404, 404);
    check((await fetched("/v1/chat/completions", { ...greedy, temperature: -1 })).status === 422, 422);
  }],
}, async () => {
  await browser.close();
  site.close();
});
