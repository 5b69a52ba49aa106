// What both parts of the page share: requests to the API, and elements.
export const API = new URLSearchParams(location.search).get("api") ?? "http://127.0.0.1:8000/api/v1";
export const $ = (selector) => document.querySelector(selector);
let token;

export class Refused extends Error {
  constructor({ message, code, details, ...rest }) {
    super(details?.map((one) => one.message).join(" ") || message);
    Object.assign(this, { code, rest });
  }
}

export async function call(path, { method = "GET", body, query = {} } = {}) {
  const address = `${API}/${path}?${new URLSearchParams(query)}`;
  const headers = { "Content-Type": "application/json", ...(token && { Authorization: `Bearer ${token}` }) };
  const answer = await fetch(address, { method, headers, body: body && JSON.stringify(body) });
  const content = answer.status === 204 ? null : await answer.json();
  if (!answer.ok) throw new Refused(content);
  return content;
}

export const post = (path, body) => call(path, { method: "POST", body });
export const use = (session) => { token = session.token; return session; };
export const values = (form) => Object.fromEntries(new FormData(form));

export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children.filter((one) => one != null));
  return made;
}

// Runs a handler of an event; what fails is told to the reader.
export const told = (handler) => async (event) => {
  event.preventDefault();
  $("#error").textContent = "";
  try { await handler(event.target); } catch (error) { $("#error").textContent = error.message; }
};
