// A third client that checks every chunk against a schema: it tells null from missing.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { key, model, url } from "./server.mjs";

const provider = createOpenAICompatible({ name: "cotenant", baseURL: url + "/v1", apiKey: key || "none", includeUsage: true });
const prompt = [{ role: "user", content: [{ type: "text", text: "Name three colours." }] }];

async function drain(stream) {
  const parts = [];
  for await (const p of stream) parts.push(p);
  const bad = parts.filter((p) => p.type === "error");
  assert.deepEqual(bad, []);
  return parts;
}

test("chat", async () => {
  const r = await provider.chatModel(model).doGenerate({ prompt, maxOutputTokens: 4 });
  assert.ok(r.content.some((c) => c.type === "text" && c.text));
});

test("chat stream", async () => {
  const { stream } = await provider.chatModel(model).doStream({ prompt, maxOutputTokens: 4 });
  const parts = await drain(stream);
  assert.ok(parts.some((p) => p.type === "text-delta" && p.delta));
  const finish = parts.find((p) => p.type === "finish");
  assert.ok(JSON.stringify(finish.usage).match(/[1-9]/));
});

test("completion stream", async () => {
  const { stream } = await provider.completionModel(model).doStream({ prompt, maxOutputTokens: 4 });
  assert.ok((await drain(stream)).some((p) => p.type === "text-delta" && p.delta));
});

test("error", async () => {
  await assert.rejects(provider.chatModel("no-such-model").doGenerate({ prompt }), (e) => e.statusCode === 404 && /no-such-model/.test(e.message));
});
