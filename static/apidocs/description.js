"use strict";

// Both viewers work through all of what they are given, for seconds: they are given a part of the description.

const COMPONENT = /^#\/components\/([^/]+)\/([^/]+)$/;

// The components that a part of the description refers to, and those that these refer to.
function componentsOf(description, part) {
  const found = {};
  const waiting = [part];
  while (waiting.length) {
    const value = waiting.pop();
    const [, kind, name] = typeof value === "string" ? COMPONENT.exec(value) ?? [] : [];
    if (kind && !found[kind]?.[name]) {
      found[kind] = {...found[kind], [name]: description.components[kind][name]};
      waiting.push(found[kind][name]);
    } else if (value && typeof value === "object") {
      waiting.push(...Object.values(value));
    }
  }
  return found;
}
