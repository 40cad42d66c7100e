// Writing to the page once per frame, however fast items arrive.

const BUDGET = 5; // milliseconds of a frame; layout and painting need the rest

/** A queue of items. Each frame calls `write` for as many as its budget allows, then `commit` once. */
export class FrameQueue {
  #items = [];
  #next = 0;
  #scheduled = false;
  #waiting = [];
  #write;
  #commit;

  constructor(write, commit) {
    this.#write = write;
    this.#commit = commit;
  }

  /** Add items; they are written with the next frames. A hidden page has none until it is shown again. */
  push(items) {
    for (const item of items) this.#items.push(item);
    this.#schedule();
  }

  /** Wait until everything is written. */
  async drained() {
    if (this.#items.length) await new Promise((done) => this.#waiting.push(done));
  }

  #schedule() {
    if (this.#scheduled || !this.#items.length) return;
    this.#scheduled = true;
    requestAnimationFrame(() => this.#flush());
  }

  #flush() {
    const end = performance.now() + BUDGET;
    do this.#write(this.#items[this.#next++]);
    while (this.#next < this.#items.length && performance.now() < end);
    this.#commit();
    this.#scheduled = false;
    if (this.#next < this.#items.length) return this.#schedule();
    this.#items = [];
    this.#next = 0;
    for (const done of this.#waiting.splice(0)) done();
  }
}
