// The form with the settings of requests. It is kept for the tab, and turned into fields of a chat completion.

import { byId, el } from "./dom.js";

const STORE = "tgi-settings";
const KEPT = "#settings :is(input, select, textarea):not(#theme)";

const SAMPLING = [
  { name: "temperature", label: "Temperature", min: 0, max: 100, step: "any", shown: "1", hint: "0 takes the most probable token" },
  { name: "max_tokens", label: "Max. tokens", min: 1, step: 1, shown: "all that fit" },
  { name: "top_p", label: "Top p", min: 0.000001, max: 1, step: "any", shown: "1" },
  { name: "top_k", label: "Top k", min: 0, step: 1, shown: "all" },
  { name: "min_p", label: "Min. p", min: 0, max: 1, step: "any", shown: "0" },
  { name: "seed", label: "Seed", min: 0, max: Number.MAX_SAFE_INTEGER, step: 1, shown: "random" },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.000001, step: "any", shown: "1" },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: "any", shown: "0" },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: "any", shown: "0" },
];
const TOP = { name: "top_logprobs", label: "Alternatives per token", min: 0, step: 1, shown: "5" };
const DEFAULT_TOP = 5;

const SCHEMA = {
  type: "object",
  properties: { city: { type: "string" }, inhabitants: { type: "integer" } },
  required: ["city", "inhabitants"],
  additionalProperties: false,
};
const WEATHER = {
  name: "weather",
  description: "The weather in a city",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
};

/** The settings of requests. */
export class Settings {
  #form = byId("settings");
  #reveal;

  /** `reveal` makes the form visible, before a field that is wrong gets the focus. */
  constructor(reveal) {
    this.#reveal = reveal;
    byId("sampling").append(...SAMPLING.map(field));
    byId("alternatives-row").append(field(TOP));
    this.#restore();
    this.#form.addEventListener("submit", (event) => event.preventDefault());
    this.#form.addEventListener("input", () => this.#store());
    this.#form.addEventListener("change", (event) => this.#judge(event.target));
    for (const [name, example] of [["schema", SCHEMA], ["tools", [WEATHER]]]) {
      byId(`${name}-example`).addEventListener("click", () => this.#insert(byId(name), example));
    }
  }

  /** Offer the model and its adapters. */
  offerAdapters(model, adapters) {
    const select = byId("adapter");
    const chosen = select.value || stored().adapter;
    select.replaceChildren(el("option", { value: "" }, `none: ${model}`), ...adapters.map((name) => el("option", { value: name }, name)));
    if (adapters.includes(chosen)) select.value = chosen;
    byId("adapter-row").hidden = adapters.length === 0;
  }

  /** The fields of a request with these messages; null if a setting is wrong, which then has the focus. */
  request(messages) {
    const wrong = [...this.#form.elements].find((each) => !this.#judge(each));
    if (wrong) {
      this.#reveal();
      wrong.closest("details").open = true;
      wrong.focus();
      return null;
    }
    const system = byId("system").value;
    const said = system.trim() ? [{ role: "system", content: system }, ...messages] : messages;
    return { messages: said, stream: true, stream_options: { include_usage: true }, ...this.#fields() };
  }

  #fields() {
    const fields = {};
    for (const { name } of SAMPLING) if (byId(name).value !== "") fields[name] = byId(name).valueAsNumber;
    const stop = byId("stop-strings").value.split("\n").filter((line) => line !== "");
    if (stop.length) fields.stop = stop;
    if (byId("adapter").value) fields.model = byId("adapter").value;
    if (byId("logprobs").checked) {
      const top = byId(TOP.name).value === "" ? DEFAULT_TOP : byId(TOP.name).valueAsNumber;
      Object.assign(fields, { logprobs: true }, top ? { top_logprobs: top } : {});
    }
    const schema = parsed(byId("schema"));
    if (schema !== null) fields.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
    const tools = parsed(byId("tools"));
    if (tools !== null) Object.assign(fields, { tools: tools.map(asTool), tool_choice: byId("tool-choice").value });
    return fields;
  }

  /** Whether the value of a field is right; says why where it is not. */
  #judge(input) {
    const says = byId(`${input.id}-error`);
    if (says === null) return true;
    const problem = problemOf(input);
    says.textContent = problem;
    says.hidden = problem === "";
    input.setAttribute("aria-invalid", String(problem !== ""));
    return problem === "";
  }

  #insert(box, example) {
    box.value = JSON.stringify(example, null, 2);
    this.#judge(box);
    this.#store();
    box.focus();
  }

  #store() {
    const values = {};
    for (const each of document.querySelectorAll(KEPT)) values[each.id] = each.type === "checkbox" ? each.checked : each.value;
    sessionStorage.setItem(STORE, JSON.stringify(values));
  }

  #restore() {
    const values = stored();
    for (const each of document.querySelectorAll(KEPT)) {
      if (!(each.id in values)) continue;
      if (each.type === "checkbox") each.checked = values[each.id];
      else each.value = values[each.id];
    }
  }
}

function stored() {
  return JSON.parse(sessionStorage.getItem(STORE) ?? "{}");
}

function field({ name, label, hint, shown, ...limits }) {
  const described = `${name}-error${hint ? ` ${name}-hint` : ""}`;
  const input = el("input", { id: name, type: "number", placeholder: shown, "aria-describedby": described, inputmode: "decimal" });
  for (const [limit, value] of Object.entries(limits)) input.setAttribute(limit, value);
  return el("div", { class: "field" }, el("label", { for: name }, label), input,
    hint ? el("p", { id: `${name}-hint`, class: "hint" }, hint) : null,
    el("p", { id: `${name}-error`, class: "error", hidden: true }));
}

function problemOf(input) {
  if (input.type === "number") return input.validationMessage;
  try {
    const value = parsed(input);
    if (value === null) return "";
    if (input.id === "tools") return toolsProblem(value);
    return typeof value === "object" && !Array.isArray(value) ? "" : "A JSON schema is an object.";
  } catch (error) {
    return `This is not JSON: ${error.message}`;
  }
}

function toolsProblem(value) {
  if (!Array.isArray(value)) return "Write an array of functions, each with a name and parameters.";
  const place = value.findIndex((each) => typeof (each?.function ?? each)?.name !== "string");
  return place < 0 ? "" : `Function ${place + 1} has no name.`;
}

function parsed(box) {
  return box.value.trim() === "" ? null : JSON.parse(box.value);
}

/** A tool from a function, or from a tool as the API has it. */
function asTool(given) {
  return given.function ? given : { type: "function", function: given };
}
