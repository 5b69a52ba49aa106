"use strict";

// ReDoc's menu fetches its maker's logo from its maker's host, and no option turns that off. The page's policy
// would refuse it, with an error in the console; so any picture that is not inlined is exchanged here, before it
// is asked for, by an empty one. ReDoc then leaves the logo out. React sets the source in both ways.
const image = HTMLImageElement.prototype;
const source = Object.getOwnPropertyDescriptor(image, "src");

function inlined(url) {
  return url.startsWith("data:") ? url : "data:,";
}

image.setAttribute = function (name, value) {
  Element.prototype.setAttribute.call(this, name, name === "src" ? inlined(value) : value);
};

Object.defineProperty(image, "src", {
  ...source,
  set(url) {
    source.set.call(this, inlined(url));
  },
});

// ReDoc draws all operations at once, which takes many seconds: it is given those of one tag, or of all if they are few.
const FEW = 40;
const choice = document.getElementById("tag");

function only(description, tag) {
  const paths = Object.entries(description.paths).map(([path, item]) => {
    const operations = Object.entries(item).filter(([, one]) => !one.tags || one.tags.includes(tag));
    return [path, Object.fromEntries(operations)];
  }).filter(([, item]) => Object.values(item).some((one) => one.tags));
  const {securitySchemes} = description.components;
  const part = {...description, paths: Object.fromEntries(paths), tags: description.tags.filter(({name}) => name === tag)};
  return {...part, components: {securitySchemes, ...componentsOf(description, part.paths)}};
}

fetch("/openapi.json").then((response) => response.json()).then((description) => {
  const names = description.tags.map(({name}) => name);
  const asked = new URLSearchParams(location.search).get("tag");
  const all = Object.keys(description.paths).length <= FEW;
  const tag = names.includes(asked) ? asked : names.includes("Records") ? "Records" : names[0];
  choice.append(...names.map((name) => new Option(name, name, name === tag, name === tag)));
  choice.addEventListener("change", () => choice.form.submit());
  choice.form.hidden = all;
  Redoc.init(all ? description : only(description, tag), {}, document.getElementById("redoc"));
});
