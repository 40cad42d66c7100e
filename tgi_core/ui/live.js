// The live figures, drawn from /metrics.

import { get } from "./api.js";
import { byId, duration, el, number, svg } from "./dom.js";
import { Reading, quantile, rate } from "./metrics.js";

const PERIOD = 1000; // milliseconds between readings
const WINDOW = 60; // readings kept
const RATE_WINDOW = 5; // readings over which tokens per second are counted
const TTFT = "tgi_request_time_to_first_token_duration";
const TOKENS = "tgi_batch_generated_tokens";
const GAUGES = ["tgi_queue_size", "tgi_batch_current_size", "tgi_kv_blocks_used", "tgi_kv_blocks_capacity"];
const NAMES = new Set([...GAUGES, TOKENS, TTFT]);

const FIGURES = [
  { label: "Queue", hint: "requests that wait", value: (now) => now.value("tgi_queue_size"), show: number },
  { label: "Batch", hint: "requests that run", value: (now) => now.value("tgi_batch_current_size"), show: number },
  { label: "KV cache", hint: "blocks in use", value: kvUse, show: (share) => `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`, most: 1 },
  { label: "Tokens/s", hint: "of all requests", value: tokensPerSecond, show: number },
  { label: "First token", hint: "median of the last minute", value: (now, past) => quantile(TTFT, 0.5, past[0], now), show: duration },
];

/** Reads /metrics every second while the figures can be seen. */
export class LivePanel {
  #past = [];
  #tiles = FIGURES.map((figure) => new Tile(figure));
  #timer = 0;
  #visible;

  /** `visible` says whether the figures can be seen. */
  constructor(visible) {
    this.#visible = visible;
    byId("figures").append(...this.#tiles.map((tile) => tile.element));
    document.addEventListener("visibilitychange", () => this.refresh());
    byId("live").addEventListener("toggle", () => this.refresh());
  }

  /** Start or stop reading, as the figures are seen or not. */
  refresh() {
    clearTimeout(this.#timer);
    if (this.#visible() && byId("live").open && !document.hidden) this.#read();
  }

  async #read() {
    try {
      const text = await (await get("metrics")).text();
      this.#show(new Reading(text, NAMES, performance.now() / 1000));
      byId("live-note").textContent = "";
    } catch (error) {
      byId("live-note").textContent = `No figures: ${error.message}`;
    }
    clearTimeout(this.#timer);
    if (this.#visible() && byId("live").open && !document.hidden) this.#timer = setTimeout(() => this.#read(), PERIOD);
  }

  #show(reading) {
    this.#past.push(reading);
    if (this.#past.length > WINDOW) this.#past.shift();
    for (const tile of this.#tiles) tile.add(reading, this.#past);
  }
}

/** One figure with its course over the last minute. */
class Tile {
  #figure;
  #value = el("dd", { class: "value" }, "–");
  #line = svg("polyline", { class: "line", "vector-effect": "non-scaling-stroke" });
  #area = svg("polygon", { class: "area" });
  #values = [];

  constructor(figure) {
    this.#figure = figure;
    const frame = { viewBox: `0 0 ${WINDOW - 1} 20`, preserveAspectRatio: "none", "aria-hidden": "true" };
    this.element = el("div", { class: "figure" }, el("dt", {}, figure.label), this.#value,
      el("dd", { class: "chart" }, svg("svg", frame, this.#area, this.#line)),
      el("dd", { class: "hint" }, figure.hint));
  }

  add(reading, past) {
    const value = this.#figure.value(reading, past);
    this.#value.textContent = value === null ? "–" : this.#figure.show(value);
    this.#values.push(value ?? 0);
    if (this.#values.length > WINDOW) this.#values.shift();
    const most = this.#figure.most ?? Math.max(...this.#values, 1e-9);
    const start = WINDOW - this.#values.length;
    const points = this.#values.map((each, place) => `${start + place},${(19 - (each / most) * 18).toFixed(2)}`);
    this.#line.setAttribute("points", points.join(" "));
    this.#area.setAttribute("points", [`${start},20`, ...points, `${WINDOW - 1},20`].join(" "));
  }
}

function tokensPerSecond(now, past) {
  return rate(TOKENS, past.at(-RATE_WINDOW - 1) ?? past[0], now);
}

function kvUse(now) {
  const capacity = now.value("tgi_kv_blocks_capacity");
  return capacity ? now.value("tgi_kv_blocks_used", 0) / capacity : null;
}
