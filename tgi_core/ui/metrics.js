// Prometheus' text format, as far as the live figures need it.

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LE = /(?:^|,)le="([^"]*)"/;

/** One reading of /metrics. Series of a name are summed over their labels, such as shards. */
export class Reading {
  #values = new Map();
  #buckets = new Map();

  /** `names` are the metrics to keep; `at` is the time of the reading in seconds. */
  constructor(text, names, at) {
    this.at = at;
    for (const line of text.split("\n")) {
      const found = line[0] === "#" ? null : LINE.exec(line);
      if (found === null) continue;
      const [, name, labels, value] = found;
      if (names.has(name)) this.#values.set(name, this.value(name, 0) + Number(value));
      const histogram = name.replace(/_bucket$/, "");
      if (histogram === name || !names.has(histogram)) continue;
      this.#count(histogram, Number(LE.exec(labels)[1].replace("+Inf", "Infinity")), Number(value));
    }
  }

  /** The value of a counter or gauge, or `missing`. */
  value(name, missing = null) {
    return this.#values.get(name) ?? missing;
  }

  /** Counts up to each bound of a histogram: a map from bound to count. */
  counts(name) {
    return this.#buckets.get(name) ?? new Map();
  }

  #count(name, bound, value) {
    const counts = this.counts(name);
    counts.set(bound, (counts.get(bound) ?? 0) + value);
    this.#buckets.set(name, counts);
  }
}

/** The increase of a counter per second between two readings; null where it is unknown, or the server started again. */
export function rate(name, from, to) {
  const [before, after] = [from.value(name), to.value(name)];
  if (before === null || after === null || after < before || to.at <= from.at) return null;
  return (after - before) / (to.at - from.at);
}

/** A quantile of what a histogram observed between two readings, interpolated as in Prometheus; null if it observed nothing. */
export function quantile(name, share, from, to) {
  const before = from.counts(name);
  const counts = [...to.counts(name)].map(([bound, count]) => [bound, count - (before.get(bound) ?? 0)]).sort(([a], [b]) => a - b);
  const total = counts.at(-1)?.[1] ?? 0;
  if (total <= 0) return null;
  const rank = share * total;
  let [low, below] = [0, 0];
  for (const [bound, count] of counts) {
    if (count >= rank) return bound === Infinity ? low : low + ((bound - low) * (rank - below)) / (count - below);
    [low, below] = [bound, count];
  }
  return low;
}
