// What the tests of this folder share: a server that runs already, named by COTENANT_URL (http://host:port). COTENANT_TEST_MODEL
// picks a model, else the first that the server lists; COTENANT_API_KEY is the server's key, where it has one.
import OpenAI from "openai";

export const url = (process.env.COTENANT_URL ?? "").replace(/\/+$/, "");
export const key = process.env.COTENANT_API_KEY ?? "";
if (!url) {
  throw new Error("set COTENANT_URL to the address of a running server");
}
export const client = new OpenAI({ baseURL: url + "/v1", apiKey: key || "none", maxRetries: 0, timeout: 120_000 });
export const model = process.env.COTENANT_TEST_MODEL || (await client.models.list()).data[0].id;
export const user = [{ role: "user", content: "Name three colours of the rainbow." }];
