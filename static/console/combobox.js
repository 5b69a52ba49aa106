// Searches records or users while one types: a combobox in place of the id and the finder. With
// `data-any`, any other text stays, too. The search takes the inputs that `data-with` names along.
// A link with `data-opens` leads to the chosen record.
import { translate } from "./texts.js";
const PAUSE = 200; // milliseconds after the last key

class Combobox {
  constructor(picker) {
    this.id = picker.querySelector("input:not([type=search])");
    this.url = picker.dataset.options;
    this.others = picker.dataset.with?.split(" ") ?? [];
    this.takesAny = "any" in picker.dataset;
    this.opens = picker.querySelector("[data-opens]");
    this.chosen = picker.dataset.label || this.id.value;
    this.input = document.createElement("input");
    Object.assign(this.input, { className: "form-control form-select", value: this.chosen, autocomplete: "off", role: "combobox" });
    this.input.id = `${this.id.id}-name`;
    this.input.setAttribute("aria-autocomplete", "list");
    this.input.setAttribute("aria-expanded", "false");
    this.input.setAttribute("aria-controls", `${this.id.id}-options`);
    for (const name of ["aria-invalid", "aria-describedby", "aria-label", "placeholder"]) {
      if (this.id.hasAttribute(name)) this.input.setAttribute(name, this.id.getAttribute(name));
    }
    this.list = document.createElement("ul");
    Object.assign(this.list, { className: "options", id: `${this.id.id}-options`, role: "listbox", popover: "manual" });
    this.list.setAttribute("aria-label", picker.getAttribute("aria-label"));
    const label = picker.querySelector(`label[for="${this.id.id}"]`);
    if (label) {
      label.htmlFor = this.input.id;
      label.textContent = picker.getAttribute("aria-label");
    }
    this.id.type = "hidden";
    this.id.after(this.input, this.list);
    for (const part of picker.querySelectorAll(".finder, .finder ~ *, [data-now]")) part.remove();
    picker.classList.add("combobox");
    this.input.addEventListener("input", () => {
      if (this.takesAny) this.id.value = this.chosen = this.input.value;
      this.plan();
    });
    this.input.addEventListener("keydown", event => this.press(event));
    this.input.addEventListener("click", () => this.look());
    this.input.addEventListener("blur", () => this.leave());
    addEventListener("scroll", () => this.isOpen && this.place(), { capture: true, passive: true });
    this.list.addEventListener("mousedown", event => {
      event.preventDefault(); // the input keeps the focus
      const option = event.target.closest("[role=option]");
      if (option) this.choose(option);
    });
  }

  get options() {
    return [...this.list.querySelectorAll("[role=option]")];
  }

  plan() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.search(), PAUSE);
  }

  // All choices, where a click has not come to change a text.
  look() {
    if (this.isOpen || this.input.value !== this.chosen) return;
    if (!this.takesAny) this.input.select();
    this.search("");
  }

  async search(text = this.input.value) {
    this.request?.abort();
    this.request = new AbortController();
    const url = new URL(this.url, location);
    url.searchParams.set("text", text);
    for (const name of this.others) url.searchParams.set(name, this.id.form.elements[name].value);
    try {
      const response = await fetch(url, { signal: this.request.signal });
      if (!response.ok || response.redirected) return;
      this.show((await response.json()).options);
    } catch {} // another search has begun, or the server is away
  }

  show(found) {
    this.list.replaceChildren(...found.map(({ id, label }, n) => {
      const option = document.createElement("li");
      Object.assign(option, { id: `${this.list.id}-${n}`, role: "option", textContent: label });
      option.dataset.id = id;
      return option;
    }));
    if (!found.length) {
      const none = document.createElement("li");
      Object.assign(none, { role: "option", textContent: translate("No matches."), ariaDisabled: "true" });
      this.list.append(none);
    }
    this.open(document.activeElement === this.input);
  }

  // A search under way would open the list again.
  close() {
    clearTimeout(this.timer);
    this.request?.abort();
    this.open(false);
  }

  get isOpen() {
    return this.list.matches(":popover-open");
  }

  open(isOpen) {
    this.list.togglePopover(isOpen);
    this.place();
    this.input.setAttribute("aria-expanded", isOpen);
    this.activate(null);
  }

  // In the top layer, as tables scroll, and with the input; above it where there is no room below.
  place() {
    const { left, top, bottom, width } = this.input.getBoundingClientRect();
    const height = this.list.offsetHeight;
    const y = bottom + height > innerHeight ? Math.max(top - height, 0) : bottom;
    Object.assign(this.list.style, { left: `${left}px`, top: `${y}px`, minWidth: `${width}px` });
  }

  activate(option) {
    for (const one of this.options) one.ariaSelected = String(one === option);
    if (option) this.input.setAttribute("aria-activedescendant", option.id);
    else this.input.removeAttribute("aria-activedescendant");
    option?.scrollIntoView({ block: "nearest" });
  }

  press(event) {
    const options = this.options.filter(one => one.dataset.id);
    const active = options.findIndex(one => one.ariaSelected === "true");
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (!this.isOpen) this.search();
      else if (options.length) {
        const step = event.key === "ArrowDown" ? 1 : -1;
        this.activate(options.at((Math.max(active, step > 0 ? -1 : 0) + step) % options.length));
      }
    } else if (event.key === "Enter" && this.isOpen && options.length && (active >= 0 || !this.takesAny)) {
      event.preventDefault();
      this.choose(options[Math.max(active, 0)]);
    } else if (event.key === "Escape" && this.isOpen) {
      event.stopPropagation();
      this.close();
    }
  }

  choose(option) {
    if (!option.dataset.id) return;
    this.input.value = option.textContent;
    this.take(option.dataset.id);
    this.close();
  }

  take(id) {
    this.id.value = id;
    this.chosen = this.input.value;
    if (!this.opens) return;
    this.opens.hidden = !id;
    if (id) this.opens.href = this.opens.href.replace(/[^/]*$/, id);
  }

  // A text that names no choice is undone, unless any is taken; none at all is no record. An id is
  // taken as it is.
  leave() {
    this.close();
    const text = this.input.value.trim();
    if (text === this.chosen) return;
    if (!text || this.takesAny || /^[0-9a-f-]{36}$/i.test(text)) {
      this.input.value = text;
      this.take(text);
    } else {
      this.input.value = this.chosen;
    }
  }
}

export function attach(part) {
  for (const picker of part.querySelectorAll("[data-options]")) new Combobox(picker);
}

attach(document);
