// The official Node client against a running server. Nothing here depends on what the model says.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { client, key, model, url, user } from "./server.mjs";

test("models", async () => {
  const ids = [];
  for await (const m of client.models.list()) ids.push(m.id);
  assert.ok(ids.includes(model));
  const one = await client.models.retrieve(model);
  assert.equal(one.id, model);
  assert.equal(one.object, "model");
});

test("chat", async () => {
  const { data, request_id } = await client.chat.completions
    .create({ model, messages: user, max_completion_tokens: 8, temperature: 0 })
    .withResponse();
  assert.ok(request_id);
  assert.match(data.id, /^chatcmpl-/);
  assert.equal(data.choices[0].message.role, "assistant");
  assert.ok(data.choices[0].message.content);
  assert.ok(["stop", "length"].includes(data.choices[0].finish_reason));
  assert.equal(data.usage.total_tokens, data.usage.prompt_tokens + data.usage.completion_tokens);
  assert.ok(data.usage.prompt_tokens_details.cached_tokens >= 0);
});

test("chat stream with usage", async () => {
  const chunks = [];
  const stream = await client.chat.completions.create({
    model, messages: user, max_tokens: 8, stream: true, stream_options: { include_usage: true },
  });
  for await (const c of stream) chunks.push(c);
  assert.deepEqual(chunks[0].choices[0].delta, { role: "assistant", content: "" });
  assert.deepEqual(chunks.at(-1).choices, []);
  assert.ok(chunks.at(-1).usage.completion_tokens > 0);
  assert.deepEqual(chunks.at(-2).choices[0].delta, {});
  assert.ok(chunks.at(-2).choices[0].finish_reason);
  assert.ok(chunks.slice(0, -1).every((c) => c.usage === null && c.choices.length === 1));
});

test("stream helper", async () => {
  let text = "";
  const runner = client.chat.completions.stream({ model, messages: user, max_tokens: 6, stream_options: { include_usage: true } });
  runner.on("content", (delta) => (text += delta));
  const final = await runner.finalChatCompletion();
  assert.equal(final.choices[0].message.content, text);
  assert.ok((await runner.totalUsage()).completion_tokens > 0);
});

test("chat choices and logprobs", async () => {
  const r = await client.chat.completions.create({ model, messages: user, n: 2, max_tokens: 3, logprobs: true, top_logprobs: 2 });
  assert.deepEqual(r.choices.map((c) => c.index), [0, 1]);
  for (const c of r.choices) {
    for (const t of c.logprobs.content) {
      assert.ok(t.logprob <= 0 && Array.isArray(t.bytes) && t.top_logprobs.length === 2);
    }
  }
});

test("completions", async () => {
  const r = await client.completions.create({ model, prompt: ["a b", "c d"], n: 2, max_tokens: 2, echo: true, logprobs: 2 });
  assert.deepEqual(r.choices.map((c) => c.index), [0, 1, 2, 3]);
  r.choices.forEach((c, i) => {
    assert.ok(c.text.startsWith(i < 2 ? "a b" : "c d"));
    assert.equal(c.logprobs.token_logprobs[0], null);
    assert.equal(c.logprobs.tokens.length, c.logprobs.text_offset.length);
  });
});

test("completion stream", async () => {
  const chunks = [];
  for await (const c of await client.completions.create({ model, prompt: "a b", max_tokens: 3, stream: true })) chunks.push(c);
  assert.ok(chunks.every((c) => c.object === "text_completion" && typeof c.choices[0].text === "string"));
  assert.ok(chunks.at(-1).choices[0].finish_reason);
});

test("errors", async () => {
  const ask = (body) => client.chat.completions.create({ model, messages: user, max_tokens: 1, ...body });
  await assert.rejects(ask({ temperature: 3 }), (e) => e instanceof OpenAI.BadRequestError && e.param === "temperature");
  await assert.rejects(ask({ messages: [] }), (e) => e instanceof OpenAI.BadRequestError && e.param === "messages");
  await assert.rejects(ask({ tools: [{ type: "function", function: { name: "f" } }] }), (e) => e instanceof OpenAI.BadRequestError && e.param === "tools");
  await assert.rejects(ask({ model: "no-such-model" }), (e) => e instanceof OpenAI.NotFoundError && e.code === "model_not_found");
  await assert.rejects(ask({ model: "no-such-model", stream: true }), (e) => e instanceof OpenAI.NotFoundError);
  await assert.rejects(ask({ messages: [{ role: "user", content: "many words ".repeat(150000) }] }), (e) => e.code === "context_length_exceeded");
});

test("key", async () => {
  const other = new OpenAI({ baseURL: url + "/v1", apiKey: "wrong-" + key, maxRetries: 0 });
  if (key) {
    await assert.rejects(other.models.list(), (e) => e instanceof OpenAI.AuthenticationError && e.code === "invalid_api_key");
  } else {
    assert.ok((await other.models.list()).data.length > 0);
  }
});

test("abandoned stream", async () => {
  const stream = await client.chat.completions.create({ model, messages: user, stream: true, max_tokens: 200, ignore_eos: true });
  for await (const _ of stream) break;
  assert.ok((await client.chat.completions.create({ model, messages: user, max_tokens: 1 })).id);
});
