// Server-sent events, from text that arrives in pieces.

/** Parses a stream of events. Only their data matters here: names, ids and comments are dropped. */
export class EventParser {
  #rest = "";
  #data = [];

  /** Return the data of the events that `text` completes. */
  push(text) {
    const lines = (this.#rest + text).split(/\r\n|\n|\r(?=[^])/); // a CR at the end may be half a CRLF
    this.#rest = lines.pop();
    const found = [];
    for (const line of lines) {
      if (line.startsWith("data:")) this.#data.push(line.slice(line[5] === " " ? 6 : 5));
      else if (line === "" && this.#data.length) {
        found.push(this.#data.join("\n"));
        this.#data = [];
      }
    }
    return found;
  }
}
