// The chat: its turns, and the answer that is being written.

import { Alternatives } from "./alternatives.js";
import { ApiError, chat } from "./api.js";
import { announce, byId } from "./dom.js";
import { FrameQueue } from "./frames.js";
import { AnswerTurn, ToolTurn, UserTurn } from "./turns.js";

const SPOKEN = 600; // characters of an answer that are announced
const NEAR = 48; // pixels from the end within which the view follows the text

/** A chat with the model. */
export class Conversation {
  #turns = [];
  #running = null; // AbortController of the answer that is being written
  #follows = true;
  #settings;
  #name;
  #changed;
  #onError;
  #alternatives = new Alternatives();
  #view = byId("conversation");

  /** `name()` is the model's; `changed(running)` is called as an answer begins and ends; `onError` gets ApiErrors. */
  constructor(settings, name, changed, onError) {
    this.#settings = settings;
    this.#name = name;
    this.#changed = changed;
    this.#onError = onError;
    this.#view.addEventListener("scroll", () => {
      this.#follows = this.#view.scrollHeight - this.#view.scrollTop - this.#view.clientHeight < NEAR;
    }, { passive: true });
  }

  get running() {
    return this.#running !== null;
  }

  /** Send a message; return whether it was sent: settings may be wrong. */
  send(text) {
    return this.#ask([new UserTurn(text)]);
  }

  /** Stop the answer that is being written. */
  stop() {
    this.#running?.abort();
  }

  /** Start a new chat. */
  clear() {
    this.stop();
    this.#turns = [];
    byId("messages").replaceChildren();
    byId("empty").hidden = false;
    announce("New chat");
  }

  #ask(added, prefix = []) {
    const messages = [...this.#messages(), ...added.map((turn) => turn.message())];
    if (prefix.length) messages.push({ role: "assistant", content: prefix.map((piece) => piece.text).join("") });
    const body = this.running ? null : this.#settings.request(messages);
    if (body === null) return false;
    for (const turn of added) this.#add(turn);
    this.#answer(body, prefix);
    return true;
  }

  async #answer(body, prefix) {
    const turn = new AnswerTurn(this.#name(), {
      open: (opened, place) => this.#open(opened, place),
      copy: (copied, button) => copy(copied.text.text, button),
      retry: (retried) => this.#retry(retried),
      sendResults: (called, results) => this.#sendResults(called, results),
    });
    this.#add(turn);
    const running = new AbortController();
    this.#running = running;
    this.#follows = true;
    this.#changed(true);
    announce("Answering");
    this.#commit(turn);
    const queue = new FrameQueue((piece) => piece && turn.text.write(piece), () => this.#commit(turn));
    if (prefix.length) queue.push(prefix);
    let [ending, problem] = ["failed", ""];
    try {
      for await (const chunks of chat(body, running.signal, (fields) => turn.warn(fields))) {
        queue.push(chunks.map((chunk) => turn.answer.add(chunk)));
      }
      ending = turn.answer.finish ?? "stop";
    } catch (error) {
      if (error.name === "AbortError") ending = "stopped";
      else problem = describe(error, this.#onError);
    }
    await queue.drained();
    turn.end(ending, problem);
    this.#commit(turn);
    if (this.#running === running) {
      this.#running = null;
      this.#changed(false);
    }
    if (!problem) announce(spoken(turn, ending));
  }

  #commit(turn) {
    turn.commit();
    if (this.#follows) this.#view.scrollTop = this.#view.scrollHeight;
  }

  #add(turn) {
    this.#turns.push(turn);
    byId("empty").hidden = true;
    byId("messages").append(turn.element);
  }

  /** The messages so far, without questions that got no answer. */
  #messages() {
    const messages = [];
    for (const turn of this.#turns) {
      const message = turn.message();
      if (message !== null) messages.push(message);
      else if (messages.at(-1)?.role === "user") messages.pop();
    }
    return messages;
  }

  #isLast(turn) {
    return !this.running && turn === this.#turns.at(-1);
  }

  #drop(turn) {
    this.#turns.pop();
    turn.element.remove();
  }

  #retry(turn) {
    if (!this.#isLast(turn)) return;
    this.#drop(turn);
    if (!this.#ask([])) this.#add(turn);
    else byId("stop").focus();
  }

  #open(turn, place) {
    this.#alternatives.open(turn.text, place, this.#isLast(turn) ? (number, token) => this.#branch(turn, number, token) : null);
  }

  /** Write the answer again from a token that is replaced by an alternative. */
  #branch(turn, number, token) {
    const replaced = turn.text.pieces[number];
    const chosen = { token, logprob: replaced.tokens[0].top_logprobs.find((each) => each.token === token).logprob };
    const prefix = [...turn.text.pieces.slice(0, number), { text: token, tokens: [{ ...replaced.tokens[0], ...chosen }] }];
    if (!this.#isLast(turn)) return;
    this.#drop(turn);
    if (!this.#ask([], prefix)) this.#add(turn);
    else byId("stop").focus();
  }

  #sendResults(turn, results) {
    return this.#isLast(turn) && this.#ask(turn.answer.calls.map((call, place) => new ToolTurn(call, results[place])));
  }
}

function describe(error, onError) {
  if (!(error instanceof ApiError)) return `The page failed: ${error.message}`;
  onError(error);
  return error.retryAfter ? `${error.message} (try again in ${error.retryAfter} s)` : error.message;
}

function spoken(turn, ending) {
  if (ending === "stopped") return "Stopped";
  const text = turn.text.text;
  const calls = turn.answer.calls.map((call) => `Calls ${call.name}`);
  const said = text.length <= SPOKEN ? text : `Answer complete, ${turn.answer.tokens} tokens`;
  return [said, ...calls].filter(Boolean).join(". ") || "The answer is empty";
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Copying is not allowed here";
  }
  announce(button.textContent);
  setTimeout(() => (button.textContent = "Copy"), 3000);
}
