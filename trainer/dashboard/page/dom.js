// Elements and texts. Texts of runs are only ever set as text.

// Control characters, and characters that change the order of a text.
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;

function printable(text) {
  return String(text).replace(HIDDEN, "\ufffd");
}

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined)
      element.setAttribute(name, printable(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined) continue;
    element.append(child instanceof Node ? child : printable(child));
  }
  return element;
}

// An element with attributes, listeners (`onNAME`) and children.
function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

// Replaces the content of an element; the control that had the focus keeps it (`data-key`). If it
// is gone or disabled, the element gets the focus, so that Tab continues there.
function redraw(element, ...children) {
  const active = document.activeElement;
  const hadFocus = element !== active && element.contains(active);
  const key = active?.dataset.key;
  element.replaceChildren();
  fill(element, {}, children);
  if (!hadFocus) return;
  const same = [...element.querySelectorAll("[data-key]")].find((it) => it.dataset.key === key);
  same?.focus();
  if (same && document.activeElement === same) return;
  if (!element.hasAttribute("tabindex")) element.tabIndex = -1;
  element.focus();
}

// Texts that scroll get a stop of Tab, from which arrow keys scroll them.
function focusScrolled(element) {
  for (const text of element.querySelectorAll("pre"))
    if (text.scrollHeight > text.clientHeight) text.tabIndex = 0;
}

const byId = (id) => document.getElementById(id);

// Text of a value, about four digits.
function reading(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 1e-3 || size >= 1e6) return value.toExponential(1).replace("e+", "e");
  return value.toFixed(size >= 1e3 ? 0 : size >= 10 ? 2 : 4);
}

// Label of a tick, as short as possible.
function label(value) {
  const size = Math.abs(value);
  if (size < 1e-15) return "0";
  if (size >= 1e-3 && size < 1e4) return String(Number(value.toFixed(4)));
  if (size >= 1e4 && size < 1e6) return `${Math.round(value / 100) / 10}k`;
  return value.toExponential(1).replace(".0e", "e").replace("e+", "e");
}

// A table with headers; `rows` are lists of texts and elements, the first of which names the row.
function table(caption, headers, rows) {
  const row = ([first, ...rest]) =>
    h("tr", {}, h("th", { scope: "row" }, first), rest.map((cell) => h("td", {}, cell)));
  return h(
    "table",
    {},
    h("caption", { class: "hidden" }, caption),
    h("thead", {}, h("tr", {}, headers.map((text) => h("th", { scope: "col" }, text)))),
    h("tbody", {}, rows.map(row)),
  );
}

// A part that scrolls, with a stop of Tab, from which arrow keys scroll it.
function scrolled(name, content) {
  const attributes = { class: "scroll", tabindex: "0", role: "region", "aria-label": name };
  return h("div", { ...attributes, "data-key": name }, content);
}

function badge(status) {
  const kinds = { Completed: "good", Failed: "bad", Unreadable: "bad" };
  return h("span", { class: `badge ${kinds[status] ?? "open"}` }, status);
}

// A labelled choice; `options` are [value, text].
function choice(text, options, selected, change) {
  const select = h("select", { "data-key": text, onchange: (event) => change(event.target.value) });
  for (const [value, name] of options)
    select.append(h("option", { value, selected: String(value) === String(selected) }, name));
  return h("label", {}, `${text} `, select);
}
