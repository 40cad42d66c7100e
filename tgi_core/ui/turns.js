// The turns of a chat: what they look like, and what is sent of them.

import { duration, el, number } from "./dom.js";
import { Answer } from "./answer.js";
import { TokenText } from "./token_text.js";

const ENDINGS = { length: "token limit reached", stopped: "stopped", failed: "not complete" };
const PREVIEW = 200; // characters of a tool's result that its label repeats

/** What the user wrote. */
export class UserTurn {
  constructor(content) {
    this.content = content;
    this.element = turn("user", "You", el("div", { class: "text" }, content));
  }

  message() {
    return { role: "user", content: this.content };
  }
}

/** The result of a tool call, as the user gave it. */
export class ToolTurn {
  constructor(call, content) {
    this.call = call;
    this.content = content;
    this.element = turn("tool", `Result of ${call.name}`, el("div", { class: "text code" }, content));
  }

  message() {
    return { role: "tool", tool_call_id: this.call.id, content: this.content };
  }
}

/** What the model wrote. `acts` has the functions `open`, `copy`, `retry` and `sendResults`, which get the turn. */
export class AnswerTurn {
  answer = new Answer();
  ending = null;
  #acts;
  #calls = el("div", { class: "calls" });
  #cards = [];
  #foot = el("div", { class: "foot" });
  #problem = el("p", { class: "notice", role: "alert", hidden: true });
  #note = el("p", { class: "hint", hidden: true });

  constructor(name, acts) {
    this.#acts = acts;
    this.text = new TokenText((place) => acts.open(this, place));
    this.element = turn("assistant", name, this.text.element, this.#calls, this.#problem, this.#note, this.#foot);
    this.element.setAttribute("aria-busy", "true");
  }

  /** What is sent of it: nothing if it failed before its first token. */
  message() {
    const content = this.text.text;
    const calls = this.answer.calls.map(({ id, ...called }) => ({ id, type: "function", function: called }));
    if (calls.length) return { role: "assistant", content: content || null, tool_calls: calls };
    return content ? { role: "assistant", content } : null;
  }

  /** Draw the text and the tool calls as far as they have come. */
  commit() {
    this.text.commit();
    if (this.ending !== null) return;
    for (const [place, call] of this.answer.calls.entries()) {
      this.#cards[place] ??= this.#addCard();
      this.#cards[place].name.textContent = call.name;
      this.#cards[place].given.textContent = call.arguments;
    }
  }

  /** Say which fields the server ignored. */
  warn(text) {
    this.#note.textContent = `The server says: ${text}`;
    this.#note.hidden = false;
  }

  /** Draw the end. `ending` is a finish reason, `stopped` or `failed`; `problem` says why it failed. */
  end(ending, problem = "") {
    this.commit();
    this.ending = ending;
    this.element.removeAttribute("aria-busy");
    this.#problem.hidden = problem === "";
    this.#problem.textContent = problem;
    for (const [place, call] of this.answer.calls.entries()) this.#cards[place].given.textContent = indented(call.arguments);
    if (this.answer.calls.length && ending !== "failed") this.#calls.append(this.#resultForm());
    const copy = { type: "button", class: "quiet", onclick: (event) => this.#acts.copy(this, event.target) };
    const retry = { type: "button", class: "quiet retry", onclick: () => this.#acts.retry(this) };
    this.#foot.append(el("p", { class: "stats" }, this.#stats()), el("div", { class: "buttons" },
      this.text.text ? el("button", copy, "Copy") : null, el("button", retry, "Try again")));
  }

  #stats() {
    const { answer } = this;
    const tokens = answer.usage?.completion_tokens ?? answer.tokens;
    const facts = tokens ? [`${tokens.toLocaleString("en")} ${tokens === 1 ? "token" : "tokens"}`] : [];
    if (answer.firstToken !== null) facts.push(`first after ${duration(answer.firstToken)}`);
    if (answer.pace !== null) facts.push(`${number(answer.pace)} tokens/s`);
    if (ENDINGS[this.ending]) facts.push(ENDINGS[this.ending]);
    return facts.join(" · ");
  }

  #addCard() {
    const card = { name: el("bdi", {}), given: el("pre", { class: "code" }) };
    this.#calls.append(el("div", { class: "call" }, el("h4", {}, "Calls ", card.name), card.given));
    return card;
  }

  #resultForm() {
    const boxes = this.answer.calls.map(() => el("textarea", { rows: "2", class: "code", spellcheck: false }));
    const labels = this.answer.calls.map((call, place) => el("label", {}, `Result of ${call.name.slice(0, PREVIEW)}`, boxes[place]));
    const form = el("form", { class: "results" }, ...labels, el("button", { type: "submit" }, "Send results"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#acts.sendResults(this, boxes.map((box) => box.value)) && form.remove();
    });
    return form;
  }
}

function turn(role, name, ...content) {
  return el("article", { class: `turn ${role}` }, el("h3", {}, el("bdi", {}, name)), ...content);
}

/** JSON with indentation; other text as it is. */
function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
