// The text of an answer: one span per token where probabilities are known, plain text elsewhere.

import { announce, el, percent } from "./dom.js";

const BOUNDS = [0.1, 0.4, 0.7, 0.9]; // of the colours p0 to p4 in chat.css
const BLOCK = 64; // pieces after which the next line starts a block of its own, so that appending lays out little

const UNSEEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu; // control characters, and those that reorder or hide text

/** The probability of a token from its log probability. */
export function probability(logprob) {
  return logprob === null ? 0 : Math.exp(logprob);
}

/** A token's text with its white space and control characters visible. */
export function visible(text) {
  const shown = text.replaceAll(" ", "␣").replaceAll("\n", "↵").replaceAll("\t", "⇥");
  return shown.replace(UNSEEN, (found) => `U+${found.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`) || "(no text)";
}

/** A text that grows by pieces `{text, tokens}`, and lets people walk through its tokens. `onOpen` gets a piece's number. */
export class TokenText {
  element = el("div", { class: "text" });
  pieces = [];
  #spans = [];
  #fragment = document.createDocumentFragment();
  #block = null;
  #inBlock = 0;
  #onOpen;
  #current = -1;

  constructor(onOpen) {
    this.#onOpen = onOpen;
    this.element.addEventListener("click", (event) => this.#clicked(event));
    this.element.addEventListener("keydown", (event) => this.#pressed(event));
  }

  /** The text so far. */
  get text() {
    return this.pieces.map((piece) => piece.text).join("");
  }

  /** Write a piece; it is attached by `commit`. */
  write(piece) {
    if (this.#block === null || (this.#inBlock >= BLOCK && this.pieces.at(-1).text.endsWith("\n"))) this.#startBlock();
    const number = this.pieces.push(piece) - 1;
    this.#inBlock += 1;
    let node;
    if (piece.tokens.length) {
      node = document.createElement("span");
      node.className = `t p${shade(piece)}`;
      node.textContent = piece.text;
      node.number = number;
      this.#spans[number] = node;
    } else node = document.createTextNode(piece.text);
    this.#fragment.append(node);
  }

  /** Attach what was written since. */
  commit() {
    this.#block?.append(this.#fragment);
    if (this.#spans.length && this.element.tabIndex < 0) this.#becomeWalkable();
  }

  /** Mark a token as the one that is looked at, and bring it into view. */
  select(number) {
    this.#spans[this.#current]?.classList.remove("current");
    this.#current = number;
    const span = this.#spans[number];
    span?.classList.add("current");
    span?.scrollIntoView({ block: "nearest" });
    return span;
  }

  /** The number of the next token in a direction, or -1. */
  neighbour(number, step) {
    for (let next = number + step; next >= 0 && next < this.#spans.length; next += step) if (this.#spans[next]) return next;
    return -1;
  }

  #startBlock() {
    this.#block?.append(this.#fragment);
    this.#block = el("div", { class: "block" });
    this.#inBlock = 0;
    this.element.append(this.#block);
  }

  #becomeWalkable() {
    this.element.tabIndex = 0;
    this.element.setAttribute("role", "group");
    this.element.setAttribute("aria-label", "Answer. Arrow keys select a token, Enter shows its alternatives.");
  }

  #clicked(event) {
    const number = event.target.number;
    if (number !== undefined && getSelection().isCollapsed) this.#onOpen(number);
  }

  #pressed(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    if (step !== undefined) {
      const next = this.neighbour(this.#current < 0 && step > 0 ? -1 : this.#current, step);
      if (next >= 0) this.#tell(next);
    } else if (event.key === "Home") this.#tell(this.neighbour(-1, 1));
    else if (event.key === "End") this.#tell(this.neighbour(this.#spans.length, -1));
    else if ((event.key === "Enter" || event.key === " ") && this.#current >= 0) this.#onOpen(this.#current);
    else return;
    event.preventDefault();
  }

  #tell(number) {
    this.select(number);
    const piece = this.pieces[number];
    announce(`${visible(piece.text)}, ${piece.tokens.map((token) => percent(probability(token.logprob))).join(", ")}`);
  }
}

/** The number of a piece's colour, by its least probable token. */
function shade(piece) {
  const least = Math.min(...piece.tokens.map((token) => probability(token.logprob)));
  return BOUNDS.filter((bound) => least >= bound).length;
}
