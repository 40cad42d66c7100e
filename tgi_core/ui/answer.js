// An answer as it arrives: its text with tokens, its tool calls, and how long it took.

const SHORTEST = 0.05; // seconds

/** Collects the chunks of a chat completion. */
export class Answer {
  calls = [];
  finish = null;
  usage = null;
  tokens = 0;
  #pending = []; // tokens whose text the server holds back, since it may begin a stop string or a tool call
  #started = performance.now();
  #first = null;
  #last = null;

  /** Take a chunk; return the piece of text that it adds as `{text, tokens}`, or null. */
  add(chunk) {
    if (chunk.usage) this.usage = chunk.usage;
    const choice = chunk.choices?.[0];
    if (!choice) return null;
    this.finish = choice.finish_reason ?? this.finish;
    this.#count();
    this.#pending.push(...(choice.logprobs?.content ?? []));
    for (const call of choice.delta?.tool_calls ?? []) this.#call(call);
    if (choice.delta?.tool_calls?.length) this.#pending = [];
    const text = choice.delta?.content ?? "";
    return text === "" ? null : { text, tokens: this.#pending.splice(0) };
  }

  /** Seconds until the first token; null if there was none. */
  get firstToken() {
    return this.#first === null ? null : (this.#first - this.#started) / 1000;
  }

  /** Tokens per second after the first; null if they took too little time to tell. */
  get pace() {
    const [tokens, seconds] = [this.usage?.completion_tokens ?? this.tokens, (this.#last - this.#first) / 1000];
    return tokens > 1 && seconds > SHORTEST ? (tokens - 1) / seconds : null;
  }

  #count() {
    this.tokens += 1;
    this.#last = performance.now();
    this.#first ??= this.#last;
  }

  #call({ index, id, function: called }) {
    const call = (this.calls[index] ??= { id: "", name: "", arguments: "" });
    call.id ||= id ?? "";
    call.name ||= called?.name ?? "";
    call.arguments += called?.arguments ?? "";
  }
}
