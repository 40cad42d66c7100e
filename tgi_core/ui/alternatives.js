// The window with the alternatives to a token.

import { byId, el, percent } from "./dom.js";
import { probability, visible } from "./token_text.js";

const UNFIT = /\ufffd|^<\|.*\|>$|^<\/s>$/; // a part of a character, or a special token: as text it would be another token

/** Shows what else the model could have written in the place of a token. */
export class Alternatives {
  #window = byId("alternatives");
  #text = null;
  #number = -1;
  #onChoose = null;

  constructor() {
    this.#window.addEventListener("keydown", (event) => this.#pressed(event));
  }

  /** Open at a token of a TokenText. `onChoose` gets its number and another text for it; null where answers cannot be changed. */
  open(text, number, onChoose) {
    this.#text = text;
    this.#number = number;
    this.#onChoose = onChoose;
    const pressed = this.#window.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
    this.#window.replaceChildren(...this.#content());
    if (!this.#window.matches(":popover-open")) this.#window.showPopover();
    this.#place(text.select(number));
    const again = pressed && this.#window.querySelector(`button:enabled[aria-label="${CSS.escape(pressed)}"]`);
    (again ?? this.#window).focus({ preventScroll: true });
  }

  close() {
    this.#window.hidePopover();
  }

  #content() {
    const { tokens } = this.#text.pieces[this.#number];
    const title = tokens.map((token) => visible(token.token)).join(" ");
    return [
      el("h2", { id: "alternatives-title" }, "Token ", el("bdi", { class: "token" }, title)),
      ...tokens.map((token) => this.#table(token, tokens.length === 1)),
      el("div", { class: "buttons" }, ...this.#buttons()),
    ];
  }

  #table(token, alone) {
    const others = token.top_logprobs ?? [];
    const isChosen = (other) => other.token === token.token;
    const rows = others.some(isChosen) ? others : [...others, token];
    const rest = 1 - rows.reduce((sum, each) => sum + probability(each.logprob), 0);
    return el("table", {},
      el("caption", { class: "unseen" }, `Alternatives to ${visible(token.token)}`),
      el("thead", { class: "unseen" }, el("tr", {},
        ...["Token", "Probability", "Share", "Action"].map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {},
        ...rows.map((each) => this.#row(each, isChosen(each), alone)),
        rest > 0.0005 ? restRow(rest) : null));
  }

  #row(token, chosen, alone) {
    const share = probability(token.logprob);
    const fit = alone && this.#onChoose && token.token && !UNFIT.test(token.token);
    const action = chosen ? "chosen" : fit ? this.#chooser(token.token) : "";
    return el("tr", chosen ? { class: "chosen" } : {},
      el("th", { scope: "row" }, el("bdi", { class: "token" }, visible(token.token))),
      el("td", {}, percent(share)), el("td", {}, bar(share)), el("td", {}, action));
  }

  #chooser(token) {
    const choose = () => {
      this.close();
      this.#onChoose(this.#number, token);
    };
    return el("button", { type: "button", "aria-label": `Continue with ${visible(token)}`, onclick: choose }, "Continue");
  }

  #buttons() {
    const move = (label, arrow, step) => {
      const disabled = this.#text.neighbour(this.#number, step) < 0;
      return el("button", { type: "button", "aria-label": label, disabled, onclick: () => this.#go(step) }, arrow);
    };
    return [
      move("Previous token", "←", -1),
      move("Next token", "→", 1),
      el("button", { type: "button", onclick: () => this.close() }, "Close"),
    ];
  }

  #go(step) {
    const next = this.#text.neighbour(this.#number, step);
    if (next >= 0) this.open(this.#text, next, this.#onChoose);
  }

  #place(anchor) {
    const near = anchor.getClientRects()[0] ?? anchor.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = this.#window;
    const below = near.bottom + height + 12 < innerHeight;
    const top = below ? near.bottom + 6 : Math.max(8, near.top - height - 6);
    this.#window.style.left = `${Math.max(8, Math.min(near.left, innerWidth - width - 8))}px`;
    this.#window.style.top = `${Math.max(8, Math.min(top, innerHeight - height - 8))}px`;
  }

  #pressed(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step === undefined) return;
    this.#go(step);
    event.preventDefault();
  }
}

function restRow(rest) {
  return el("tr", { class: "rest" },
    el("th", { scope: "row" }, "all others"), el("td", {}, percent(rest)), el("td", {}, bar(rest)), el("td"));
}

function bar(share) {
  const made = el("span", { class: "bar-of" }, el("span", {}));
  made.firstChild.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return made;
}
