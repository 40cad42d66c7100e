// Building elements. Text becomes text nodes, never HTML.

/** The element with an id of index.html. */
export function byId(id) {
  return document.getElementById(id);
}

/**
 * Create an element. `given` are its attributes, or properties where the value is no string (`hidden: true`, `onclick: f`).
 * Children are nodes or texts; null and undefined are left out.
 */
export function el(tag, given = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (typeof value === "string") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

/** Create an SVG element with attributes. */
export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Have assistive technology say something once, after what it is saying. */
export function announce(text) {
  const announcer = byId("announcer");
  announcer.textContent = announcer.textContent === text ? `${text}\u00a0` : text; // the same text again would be silent
}

/** A probability for people: 83 %, 0.4 %, < 0.1 %. */
export function percent(probability) {
  if (!(probability > 0)) return "0 %";
  const value = probability * 100;
  if (value < 0.1) return "< 0.1 %";
  if (value < 10) return `${value.toFixed(1)} %`;
  return value > 99.5 && value < 100 ? `${Math.min(value, 99.9).toFixed(1)} %` : `${Math.round(value)} %`;
}

/** A duration in seconds for people: 80 ms, 1.24 s, 75 s. */
export function duration(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  return `${seconds < 10 ? seconds.toFixed(2) : Math.round(seconds)} s`;
}

/** A rate or count for people: 3.4, 130. */
export function number(value) {
  return value >= 10 || Number.isInteger(value) ? Math.round(value).toLocaleString("en") : value.toFixed(1);
}
