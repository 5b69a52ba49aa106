// How people come in: sign-up, sign-in, and the pages that mails lead to. Mails carry their token in the fragment of the
// address, which no server and no other page hears of.
import { $, Refused, call, element, post, told, use, values } from "./api.js";

const PAGE = location.origin + location.pathname;
const input = (label, name, type = "text", more = {}) =>
  element("label", {}, `${label} `, element("input", { name, type, required: true, ...more }));
const email = () => input("Email address", "email", "email", { autocomplete: "username" });
const password = (label = "Password", autocomplete = "current-password", name = "password") =>
  input(label, name, "password", { autocomplete });

// Shows a form, or only a text without a handler; resolves with what the handler returns, once it succeeds.
function ask(title, parts, button, handler, ...links) {
  return new Promise((done) => {
    const form = element("form", {}, element("h2", { textContent: title }), ...parts,
      button ? element("button", { textContent: button }) : null,
      ...links.map(([text, next]) => element("button", {
        type: "button", className: "link", textContent: text, onclick: () => done(next()) })));
    form.addEventListener("submit", told(async () => done(await handler(values(form)))));
    $("#entrance").replaceChildren(form);
    form.querySelector("input")?.focus();
  });
}

const say = (title, text) => ask(title, [element("p", { textContent: text })], null, null, ["Sign in", signIn]);

async function signIn() {
  const known = await ask("Sign in", [email()], "Next", async (one) => ({ ...one, ...await post("auth/discover", one) }),
    ["Open an account", signUp]);
  return known.email ? ways(known) : known;
}

// The account is known by the domain of the address, or asked for.
async function ways({ email: address, account, ...offered }) {
  const slug = account?.slug ?? localStorage.getItem("account") ?? "";
  const start = ({ name, start_url: url }) => element("a", {
    textContent: `Sign in with ${name}`, href: `${url}&${new URLSearchParams({ redirect_uri: PAGE })}` });
  const company = input("Account", "account", "text", { value: slug, readOnly: Boolean(account), autocomplete: "organization" });
  const named = () => ({ email: address, account: $("[name=account]").value });
  return ask(account?.name ?? "Sign in", [company, ...offered.providers.map(start), offered.password ? password() : null],
    offered.password ? "Sign in" : null, async (one) => signedIn(() => post("auth/login", { ...one, email: address })),
    ["Forgot your password?", async () => {
      await post("auth/forgot-password", named());
      return say("Look into your mailbox", "If there is such a user, a mail is on its way.");
    }]);
}

async function signedIn(request) {
  try {
    const session = use(await request());
    localStorage.setItem("account", session.account.slug);
    return session;
  } catch (error) {
    if (!(error instanceof Refused) || error.code !== "mfa_required") throw error;
    return ask("Second factor", [input("Code of your app", "code", "text", { autocomplete: "one-time-code" })], "Sign in",
      ({ code }) => signedIn(() => post("auth/mfa/verify", { mfa_token: error.rest.mfa_token, method: "totp", code })));
  }
}

const signUp = () => ask("Open an account",
  [input("Company", "account_name", "text", { autocomplete: "organization" }), input("Your name", "name", "text", { autocomplete: "name" }),
    email(), password("Password", "new-password")], "Open an account", async (one) => {
    const { account } = await post("auth/register", one);
    localStorage.setItem("account", account.slug);
    return say("Look into your mailbox", "Confirm your address, then sign in.");
  }, ["I have an account", signIn]);

// The pages of `links` in atrium.yaml. Nothing happens before a button is pressed: scanners open links, too.
const PAGES = {
  verify: (token) => ask("Confirm your address", [], "Confirm", async () => {
    await post("auth/verify-email", { token });
    return say("Thank you", "Your address is confirmed.");
  }),
  reset: (token) => ask("New password", [password("New password", "new-password", "new_password")], "Save", async (one) => {
    await post("auth/reset-password", { token, ...one });
    return say("Saved", "Sign in with your new password.");
  }),
  invitation: async (token) => {
    const { account_name: name, email: address, is_valid: isValid } = await call(`invitations/${token}`);
    if (!isValid) return say("This invitation has ended", "Ask whoever invited you for a new one.");
    return ask(`Join ${name}`, [element("p", { textContent: address }), input("Your name", "name", "text", { autocomplete: "name" }),
      password("Password", "new-password")], "Join", (one) => signedIn(() => post(`invitations/${token}/accept`, one)));
  },
  "sign-in": (token) => ask("Sign in", [], "Sign in", () => signedIn(() => post("auth/magic-link/verify", { token }))),
};

// Returns a session, after whatever it takes.
export async function enter() {
  const [page, token] = location.hash.slice(1).split("=");
  const code = new URLSearchParams(location.search).get("code");
  if (PAGES[page] || code) history.replaceState(null, "", PAGE + location.search.replace(/[?&](code|state)=[^&]*/g, ""));
  const first = code ? () => signedIn(() => post("auth/exchange", { code })) : PAGES[page] ?? signIn;
  let session;
  await told(async () => { session = await first(decodeURIComponent(token ?? "")); })(new Event("load"));
  session ??= await signIn();
  $("#entrance").replaceChildren();
  return session;
}

// What admins of an account do on the product's own page; the other pages of administration come as a portal.
export function administration() {
  const invite = element("form", {}, element("h2", { textContent: "Invite somebody" }), email(),
    element("label", {}, "Role ", element("select", { name: "role" },
      ...["customer", "agent", "lead"].map((role) => element("option", { value: role, textContent: role })))),
    element("button", { textContent: "Invite" }), element("p", { role: "status" }));
  invite.addEventListener("submit", told(async () => {
    const { email: address } = await post("invitations", values(invite));
    invite.querySelector("p").textContent = `A mail to ${address} is on its way.`;
  }));
  const manage = element("button", { textContent: "Manage the account" });
  manage.addEventListener("click", told(async () => {
    const { url } = await post("account/portal-sessions", { pages: ["team", "sso", "domains", "usage"], return_url: PAGE });
    location.assign(url);
  }));
  return element("section", {}, invite, manage);
}
