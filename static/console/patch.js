// Makes a part of the page equal to a newer copy. Nodes that have not changed stay, with their focus, scroll position,
// ticked boxes and typed text.
const PRESERVED = ["open", "tabindex", "data-sent", "data-changed"]; // attributes that users and scripts set

// Returns the rows (elements with `data-key`) that are new or changed, and the number of removed ones.
export function patch(current, next) {
  const focused = document.activeElement;
  const result = { changed: [], removed: 0 };
  const hadFocus = current.contains(focused);
  patchNode(current, next, result);
  if (hadFocus && document.activeElement !== focused) {
    (focused.isConnected ? focused : current.querySelector("[tabindex]"))?.focus({ preventScroll: true });
  }
  return result;
}

function patchNode(current, next, result) {
  if (current.isEqualNode(next)) return;
  if (current.nodeType !== Node.ELEMENT_NODE) {
    current.nodeValue = next.nodeValue;
    return;
  }
  const before = current.dataset.key && current.textContent;
  patchAttributes(current, next);
  patchChildren(current, next, result);
  if (before && current.textContent !== before) result.changed.push(current);
}

function patchAttributes(current, next) {
  for (const { name } of [...current.attributes]) {
    if (!next.hasAttribute(name) && !PRESERVED.includes(name)) current.removeAttribute(name);
  }
  for (const { name, value } of next.attributes) {
    if (current.getAttribute(name) !== value && !PRESERVED.includes(name)) current.setAttribute(name, value);
  }
}

function patchChildren(current, next, result) {
  const unmatched = Map.groupBy(current.childNodes, identity);
  const pairs = [...next.childNodes].map(node => [unmatched.get(identity(node))?.shift(), node]);
  // First, so that the rows behind a removed one need not move: moving takes the focus away.
  for (const node of [...unmatched.values()].flat()) {
    if (node.dataset?.key) result.removed += 1;
    node.remove();
  }
  let place = current.firstChild;
  for (const [old, node] of pairs) {
    if (old === undefined && node.dataset?.key) result.changed.push(node);
    if (old !== undefined) patchNode(old, node, result);
    if (old !== undefined && old === place) place = place.nextSibling;
    else current.insertBefore(old ?? node, place);
  }
}

function identity(node) {
  return `${node.nodeName} ${node.dataset?.key ?? node.id ?? ""}`;
}
