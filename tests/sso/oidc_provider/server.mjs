// A certified OpenID provider on loopback. Its first line of input is what it needs to know; any
// further line makes it start anew, with another key and without sessions.
import { generateKeyPairSync } from "node:crypto";
import { createServer } from "node:http";
import { createInterface } from "node:readline";
import { Provider } from "oidc-provider";

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const { issuer, client } = JSON.parse((await lines.next()).value);

function signingKey() {
  const { privateKey } = generateKeyPairSync("rsa", { modulusLength: 2048 });
  return { ...privateKey.export({ format: "jwk" }), use: "sig", alg: "RS256" };
}

function start() {
  const provider = new Provider(issuer, {
    clients: [client],
    clientAuthMethods: ["client_secret_basic"],
    cookies: { keys: ["a key of the cookies of tests"] },
    jwks: { keys: [signingKey()] },
    claims: { email: ["email", "email_verified"], profile: ["name"] },
    findAccount: (ctx, id) => ({
      accountId: id,
      claims: () => ({ sub: id, email: `${id}@acme.example`, email_verified: true, name: id }),
    }),
  });
  return provider.callback();
}

let answer = start();
const server = createServer((request, response) => answer(request, response));
server.listen(new URL(issuer).port, "127.0.0.1", () => console.log("ready"));
for await (const _ of lines) {
  answer = start();
  console.log("ready");
}
