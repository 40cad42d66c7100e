// Requests to the server that this page came from.

import { EventParser } from "./sse.js";

const ROOT = new URL("..", import.meta.url); // the page may be behind a proxy that adds a prefix
const KEY = "tgi-key";

/** A request that failed. `status` is 0 if the server could not be reached, or broke off a stream. */
export class ApiError extends Error {
  constructor(status, message, retryAfter = null) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

/** The API key of this tab; "" for none. */
export function key() {
  return sessionStorage.getItem(KEY) ?? "";
}

/** Keep a key for this tab, or forget it if it is "". */
export function setKey(value) {
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
}

/** GET a path below the server's root. Throws ApiError, and AbortError. */
export async function get(path, signal) {
  return request(path, { signal, cache: "no-store" });
}

/**
 * Stream a chat completion: yields arrays of chunks as they arrive. `onWarning` gets the names of ignored fields.
 * Throws ApiError, and AbortError.
 */
export async function* chat(body, signal, onWarning) {
  const sent = { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" }, signal };
  const response = await request("v1/chat/completions", sent);
  const warning = response.headers.get("x-warning");
  if (warning) onWarning(warning);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const parser = new EventParser();
  try {
    for (;;) {
      const { value, done } = await read(reader);
      if (done) throw new ApiError(0, "The connection ended before the answer was complete.");
      const { chunks, ended, failure } = chunksOf(parser.push(value));
      if (chunks.length) yield chunks;
      if (failure) throw failure;
      if (ended) return;
    }
  } finally {
    reader.cancel().catch(() => {}); // tells the server to stop generating
  }
}

async function request(path, given) {
  const headers = { ...given.headers };
  if (key()) headers.authorization = `Bearer ${String.fromCharCode(...new TextEncoder().encode(key()))}`; // as bytes of UTF-8
  let response;
  try {
    response = await fetch(new URL(path, ROOT), { ...given, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server cannot be reached.");
  }
  if (response.ok) return response;
  throw new ApiError(response.status, messageOf(await response.text(), response.status), response.headers.get("retry-after"));
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The connection was lost before the answer was complete.");
  }
}

/** The chunks of events up to the end of the stream, or up to an error. */
function chunksOf(events) {
  const chunks = [];
  for (const data of events) {
    if (data === "[DONE]") return { chunks, ended: true };
    const chunk = JSON.parse(data);
    if (chunk.error !== undefined) {
      return { chunks, failure: new ApiError(chunk.error.http_status_code ?? 500, errorText(chunk) ?? data) };
    }
    chunks.push(chunk);
  }
  return { chunks };
}

function messageOf(text, status) {
  if (status === 401) return key() ? "The server does not accept this API key." : "This server requires an API key.";
  try {
    return errorText(JSON.parse(text)) ?? text;
  } catch {
    return text || `The server responded with status ${status}.`;
  }
}

/** The message of OpenAI's or TGI's error object, if it is one. */
function errorText(body) {
  const found = typeof body?.error === "string" ? body.error : body?.error?.message;
  return typeof found === "string" ? found : null;
}
