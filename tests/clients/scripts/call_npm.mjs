// openai, ai (the AI SDK, with its providers) and @huggingface/inference of npm.

import { ANSWER, QUESTION, check, key, load, run, url } from "./calls.mjs";

const { default: OpenAI } = await load("openai");
const { zodResponseFormat } = await load("openai/helpers/zod");
const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
const { createOpenAI } = await load("@ai-sdk/openai");
const { createAnthropic } = await load("@ai-sdk/anthropic");
const ai = await load("ai");
const { InferenceClient } = await load("@huggingface/inference");
const { z } = await load("zod");

const messages = [{ role: "user", content: QUESTION }];
const greedy = { model: "tgi", messages, temperature: 0, max_tokens: 60 };
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
const provider = createOpenAICompatible({ name: "tgi", baseURL: `${url}/v1`, apiKey: key, supportsStructuredOutputs: true });
const plain = { model: provider("tgi"), prompt: QUESTION, temperature: 0, maxOutputTokens: 120, maxRetries: 0 };
const responses = { ...plain, model: createOpenAI({ baseURL: `${url}/v1`, apiKey: key })("tgi"), providerOptions: { openai: { store: false } } };
const messagesOf = { ...plain, model: createAnthropic({ baseURL: `${url}/v1`, apiKey: key })("tgi") };
const hub = new InferenceClient(key).endpoint(url);
const Person = z.object({ kind: z.enum(["human", "robot"]), adult: z.boolean(), marks: z.record(z.string(), z.boolean()).optional() });
const Small = z.object({ kind: z.enum(["human", "robot"]), adult: z.boolean() });
const parameters = { type: "object", properties: { city: { enum: ["Paris", "Rome"] } }, required: ["city"], additionalProperties: false };
const tools = [{ type: "function", function: { name: "get_weather", parameters } }];
const weather = ai.tool({ description: "The weather.", inputSchema: z.object({ city: z.enum(["Paris", "Rome"]) }) });

await run({
  openai_chat: ["A chat with its usage.", async () => {
    const made = await client.chat.completions.create(greedy);
    check(made.choices[0].message.content === ANSWER && made.usage.completion_tokens > 3, made);
  }],
  openai_stream: ["A streamed chat adds up.", async () => {
    let text = "";
    for await (const chunk of await client.chat.completions.create({ ...greedy, stream: true })) text += chunk.choices[0]?.delta?.content ?? "";
    check(text === ANSWER, text);
  }],
  openai_helper: ["The helper for streams.", async () => {
    check((await client.chat.completions.stream(greedy).finalContent()) === ANSWER);
  }],
  openai_tools: ["A call that must be made is.", async () => {
    const made = await client.chat.completions.create({ ...greedy, tools, tool_choice: "required" });
    check(["Paris", "Rome"].includes(JSON.parse(made.choices[0].message.tool_calls[0].function.arguments).city), made);
  }],
  openai_parse: ["An object by a zod schema.", async () => {
    const made = await client.chat.completions.parse({ ...greedy, response_format: zodResponseFormat(Small, "person") });
    Small.parse(made.choices[0].message.parsed);
  }],
  openai_completions: ["A text.", async () => {
    const made = await client.completions.create({ model: "tgi", prompt: "The capital of France is", max_tokens: 8, temperature: 0 });
    check(made.choices[0].text.trim().startsWith("Paris"), made);
  }],
  openai_models: ["The list of models, and one of them.", async () => {
    const [first] = (await client.models.list()).data;
    check((await client.models.retrieve(first.id)).id === first.id, first);
  }],
  openai_refused: ["A wrong value is the client's error.", async () => {
    const error = await client.chat.completions.create({ ...greedy, temperature: -1 }).then(() => null, (raised) => raised);
    check(error instanceof OpenAI.APIError && error.status === 422, String(error));
  }],
  openai_key: ["A wrong key is an authentication error.", async () => {
    const other = new OpenAI({ baseURL: `${url}/v1`, apiKey: "wrong", maxRetries: 0 });
    const error = await other.chat.completions.create(greedy).then(() => null, (raised) => raised);
    check(error instanceof OpenAI.AuthenticationError, String(error));
  }],
  ai_text: ["generateText.", async () => check((await ai.generateText(plain)).text === ANSWER)],
  ai_stream: ["streamText adds up.", async () => {
    let text = "";
    for await (const piece of ai.streamText(plain).textStream) text += piece;
    check(text === ANSWER, text);
  }],
  ai_object: ["generateObject by a zod schema with an optional record, which has `propertyNames`.", async () => {
    Person.parse((await ai.generateObject({ ...plain, schema: Person })).object);
  }],
  ai_output: ["Output.object of generateText, beside tools.", async () => {
    const made = await ai.generateText({ ...plain, tools: { weather }, experimental_output: ai.Output.object({ schema: Small }) });
    check(made.toolCalls.length > 0 || Small.parse(made.experimental_output), made.steps);
  }],
  ai_tools: ["A call that must be made is.", async () => {
    const made = await ai.generateText({ ...plain, tools: { weather }, toolChoice: "required" });
    check(["Paris", "Rome"].includes(made.toolCalls[0].input.city), made.toolCalls);
  }],
  ai_stream_tools: ["A streamed call.", async () => {
    const made = ai.streamText({ ...plain, tools: { weather }, toolChoice: "required" });
    await made.consumeStream();
    check((await made.toolCalls)[0].toolName === "weather", await made.toolCalls);
  }],
  openai_responses: ["A response, and a streamed one that adds up.", async () => {
    const asked = { model: "tgi", input: QUESTION, temperature: 0, max_output_tokens: 60 };
    check((await client.responses.create(asked)).output_text === ANSWER);
    check((await client.responses.stream(asked).finalResponse()).output_text === ANSWER);
  }],
  ...Object.fromEntries([["responses", responses], ["messages", messagesOf]].flatMap(([name, given]) => [
    [`ai_${name}_text`, [`generateText of the provider's own model (${name}).`, async () => {
      const made = await ai.generateText(given);
      check(made.text === ANSWER && made.usage.outputTokens > 3 && made.finishReason === "stop", made.steps);
    }]],
    [`ai_${name}_stream`, [`streamText adds up (${name}).`, async () => {
      let text = "";
      for await (const piece of ai.streamText(given).textStream) text += piece;
      check(text === ANSWER, text);
    }]],
    [`ai_${name}_object`, [`generateObject by a zod schema (${name}).`, async () => {
      Small.parse((await ai.generateObject({ ...given, schema: Small })).object);
    }]],
    [`ai_${name}_loop`, [`A tool that must be called first is, and its result goes back (${name}).`, async () => {
      const made = await ai.generateText({
        ...given,
        tools: { weather: { ...weather, execute: async ({ city }) => `sunny in ${city}` } },
        prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" }),
        stopWhen: ai.stepCountIs(2),
      });
      check(made.steps.length === 2 && made.steps[0].toolResults[0].output.startsWith("sunny in") && made.text, made.steps);
    }]],
    [`ai_${name}_history`, [`A second turn knows the first (${name}).`, async () => {
      const { prompt, ...others } = given;
      const first = await ai.generateText({ ...others, messages: [{ role: "user", content: "Hello!" }] });
      const turns = [{ role: "user", content: "Hello!" }, ...first.response.messages, { role: "user", content: prompt }];
      const made = await ai.generateText({ ...others, messages: turns });
      check(made.text.includes("Paris"), made.text);
    }]],
    [`ai_${name}_stream_tools`, [`A streamed call (${name}).`, async () => {
      const made = ai.streamText({ ...given, tools: { weather }, toolChoice: "required" });
      await made.consumeStream();
      check(["Paris", "Rome"].includes((await made.toolCalls)[0]?.input.city), await made.toolCalls);
    }]],
  ])),
  hub_chat: ["chatCompletion.", async () => {
    const made = await hub.chatCompletion(greedy);
    check(made.choices[0].message.content === ANSWER, made);
  }],
  hub_chat_stream: ["chatCompletionStream adds up.", async () => {
    let text = "";
    for await (const chunk of hub.chatCompletionStream(greedy)) text += chunk.choices[0]?.delta?.content ?? "";
    check(text === ANSWER, text);
  }],
  hub_text: ["textGeneration, whose text begins with its prompt.", async () => {
    const made = await hub.textGeneration({ inputs: "The capital of France is", parameters: { max_new_tokens: 8 } });
    check(made.generated_text.includes("Paris"), made);
  }],
  hub_text_stream: ["textGenerationStream, which asks for a stream of completions.", async () => {
    let text = "";
    const asked = { inputs: "The capital of France is", parameters: { max_new_tokens: 8 } };
    for await (const chunk of hub.textGenerationStream(asked)) text += chunk.choices[0]?.text ?? "";
    check(text.trim().startsWith("Paris"), text);
  }],
});
