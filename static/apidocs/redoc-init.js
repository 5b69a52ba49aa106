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

Redoc.init("/openapi.json", {}, document.getElementById("redoc"));
