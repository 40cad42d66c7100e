// What the page knows of the server: its model, whether it answers, and its key.

import { get, key, setKey } from "./api.js";
import { byId } from "./dom.js";

const PAUSE = 3000; // milliseconds between attempts while the server does not answer
const STATES = { 0: "offline", 401: "locked", 503: "loading" };
const WORDS = { locked: "needs an API key", loading: "not ready", offline: "offline" };

/** Watches the server until it answers. */
export class Server {
  info = null;
  #timer = 0;
  #onReady;

  /** `onReady` gets /info each time that the server becomes ready. */
  constructor(onReady) {
    this.#onReady = onReady;
    this.#watchDialog();
    this.connect();
  }

  /** The model's name. */
  get name() {
    return this.info?.model_id ?? "Model";
  }

  /** Ask the server for its model, until it answers. */
  async connect() {
    clearTimeout(this.#timer);
    this.#describeKey();
    try {
      this.info = await (await get("info")).json();
      this.#show("ready", "ready", "");
      this.#onReady(this.info);
    } catch (error) {
      this.#unanswered(error);
    }
  }

  /** React to an ApiError of a chat: find out whether the server still answers. */
  failed(error) {
    if (error.status in STATES) this.connect();
  }

  #unanswered(error) {
    const state = STATES[error.status] ?? "loading";
    this.#show(state, WORDS[state], state === "locked" ? "" : `${error.message} The page tries again.`);
    clearTimeout(this.#timer);
    if (state === "locked") this.askForKey(error.message);
    else this.#timer = setTimeout(() => this.connect(), PAUSE);
  }

  /** Open the window for the key. */
  askForKey(reason) {
    byId("key-reason").textContent = reason;
    byId("key").value = key();
    byId("forget-key").hidden = key() === "";
    if (!byId("key-dialog").open) byId("key-dialog").showModal();
  }

  #watchDialog() {
    byId("key-form").addEventListener("submit", () => this.#use(byId("key").value.trim()));
    byId("change-key").addEventListener("click", () => this.askForKey("The key that this tab sends to the server."));
    byId("cancel-key").addEventListener("click", () => byId("key-dialog").close());
    byId("forget-key").addEventListener("click", () => {
      byId("key-dialog").close();
      this.#use("");
    });
  }

  #use(value) {
    setKey(value);
    this.connect();
  }

  #describeKey() {
    byId("key-state").textContent = key() ? "This tab sends an API key." : "This tab sends no API key.";
    byId("change-key").textContent = key() ? "Change the API key" : "Enter an API key";
  }

  #show(state, text, reason) {
    byId("state").dataset.state = state;
    byId("state-text").textContent = text;
    const notice = byId("notice");
    notice.hidden = reason === "";
    if (notice.textContent !== reason) notice.textContent = reason;
  }
}
