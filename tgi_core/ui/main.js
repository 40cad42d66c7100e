// Puts the page together.

import { Conversation } from "./conversation.js";
import { byId, el, number } from "./dom.js";
import { LivePanel } from "./live.js";
import { Server } from "./server.js";
import { Settings } from "./settings.js";

const WIDE = matchMedia("(min-width: 60rem)"); // as in base.css: the panel is beside the chat
const EXAMPLES = ["What is the capital of France?", "Write a short poem about the sea.", "Count from one to twenty."];

const settings = new Settings(() => showPanel(true));
const live = new LivePanel(() => server.info !== null && !byId("panel").hidden);
const server = new Server(ready);
const conversation = new Conversation(settings, speaker, running, (error) => server.failed(error));

composer();
panel();
appearance();

function ready(info) {
  byId("model").textContent = info.model_id;
  byId("empty-model").textContent = info.model_id;
  document.title = `${info.model_id} · tgi-core`;
  const [all, prompt] = [number(info.max_total_tokens), number(info.max_input_tokens)];
  byId("limits").textContent = `At most ${all} tokens for prompt and answer, of which ${prompt} for the prompt.`;
  settings.offerAdapters(info.model_id, info.adapters ?? []);
  live.refresh();
}

function speaker() {
  return byId("adapter").value || server.name;
}

function running(now) {
  const focused = document.activeElement;
  byId("send").hidden = now;
  byId("stop").hidden = !now;
  if (now && (focused === byId("send") || focused === document.body)) byId("stop").focus();
  if (!now && focused === byId("stop")) byId("send").focus();
}

function composer() {
  const prompt = byId("prompt");
  const send = () => {
    if (prompt.value.trim() && conversation.send(prompt.value)) prompt.value = "";
    grow(prompt);
  };
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  prompt.addEventListener("input", () => grow(prompt));
  prompt.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!conversation.running) send();
  });
  byId("stop").addEventListener("click", () => conversation.stop());
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !document.querySelector("dialog[open], :popover-open")) conversation.stop();
  });
  byId("new-chat").addEventListener("click", () => {
    conversation.clear();
    showPanel(WIDE.matches && !byId("panel").hidden);
    prompt.focus();
  });
  const example = (text) => el("li", {}, el("button", { type: "button", onclick: () => conversation.send(text) }, text));
  byId("examples").append(...EXAMPLES.map(example));
}

/** As many rows as the text has lines, where CSS cannot size a text box by its content. */
function grow(box) {
  if (!CSS.supports("field-sizing", "content")) box.rows = Math.min(8, box.value.split("\n").length);
}

function panel() {
  byId("toggle-panel").addEventListener("click", () => showPanel(byId("panel").hidden, true));
  byId("panel").addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !WIDE.matches) {
      event.stopPropagation(); // it would stop an answer, too
      showPanel(false);
      byId("toggle-panel").focus();
    }
  });
  WIDE.addEventListener("change", () => showPanel(WIDE.matches));
  showPanel(WIDE.matches);
}

function showPanel(open, moveFocus = false) {
  byId("panel").hidden = !open;
  byId("chat").inert = open && !WIDE.matches; // there the panel covers the chat
  byId("toggle-panel").setAttribute("aria-expanded", String(open));
  if (open && moveFocus) byId("panel").focus();
  live.refresh();
}

function appearance() {
  const select = byId("theme");
  select.value = localStorage.getItem("tgi-theme") ?? "auto";
  select.addEventListener("change", () => {
    localStorage.setItem("tgi-theme", select.value);
    if (select.value === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = select.value;
  });
}
