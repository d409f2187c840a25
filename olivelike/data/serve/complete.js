// Names that are offered while one types a prompt: LoRAs behind "<", wildcards behind "__", textual inversions by their first letters.

import { $, make, newest, typeOver } from "./dom.js";
import { t } from "./language.js";
import { loraNames, weightOf } from "./loras.js";
import { ask, query } from "./server.js";

const MOST = 8;
const KINDS = [
  { begins: /<(?:l|lo|lor|lora|lora:([^<>:\n]*))?$/, names: () => loraNames(), written: (name) => `<lora:${name}:${weightOf(name)}>`, what: "LoRA" },
  { begins: /(?<!\w)__([\w./-]*)$/, names: () => lists.wildcards, written: (name) => `__${name}__`, what: t`wildcard` },
  { begins: /(?<![\w<>:/])([\w-]{2,})$/, names: () => lists.embeddings, written: (name) => name, what: t`textual inversion`, first: true },
];

const lists = { wildcards: [], embeddings: [] };
const reading = newest();

/** Read the names of wildcards and textual inversions anew; `model` is the one whose inversions count. */
export async function readNames(model) {
  const isNewest = reading();
  const [wildcards, embeddings] = await Promise.all([ask("/api/wildcards"), ask(query("/api/embeddings", { model }))]).catch(() => [[], []]);
  if (!isNewest()) return;
  lists.wildcards = wildcards.map((one) => one.name);
  lists.embeddings = embeddings.map((one) => one.name);
}

/** Return what could stand at the end of a text: from where it would be written over, and the names with how each is written. */
function offered(text) {
  for (const kind of KINDS) {
    const found = kind.begins.exec(text);
    if (!found) continue;
    const typed = (found[1] ?? "").toLowerCase();
    const rank = (name) => name.toLowerCase().indexOf(typed);
    const names = kind.names().filter((name) => (kind.first ? rank(name) === 0 && name.length > typed.length : rank(name) >= 0));
    names.sort((one, other) => rank(one) - rank(other) || one.localeCompare(other));
    if (names.length) return { from: found.index, what: kind.what, names: names.slice(0, MOST), written: kind.written };
  }
  return null;
}

/** A list below one prompt. */
class Offers {
  constructor(id) {
    this.input = $(id);
    this.list = make("ul", { id: `${id}-offers`, className: "plain offers", role: "listbox", "aria-label": t`Names`, hidden: true });
    this.input.closest(".editor").append(this.list);
    this.input.setAttribute("aria-autocomplete", "list");
    this.input.setAttribute("aria-controls", this.list.id);
    this.input.addEventListener("input", () => this.show());
    this.input.addEventListener("blur", () => this.close());
    this.input.addEventListener("click", () => this.close());
    this.input.addEventListener("keydown", (event) => this.pressed(event));
  }

  show() {
    const { selectionStart: start, selectionEnd: end, value } = this.input;
    const found = start === end && document.activeElement === this.input ? offered(value.slice(0, start)) : null;
    if (!found) return this.close();
    this.found = found;
    this.list.replaceChildren(...found.names.map((name, place) => make("li", {
      id: `${this.list.id}-${place}`, role: "option", on: {
        // The prompt keeps the cursor.
        pointerdown: (event) => {
          event.preventDefault();
          this.take(place);
        },
      },
    }, name, make("span", { className: "hint" }, ` ${found.what}`))));
    this.list.hidden = false;
    this.choose(0);
  }

  choose(place) {
    const items = [...this.list.children];
    this.place = (place + items.length) % items.length;
    for (const [number, item] of items.entries()) item.setAttribute("aria-selected", String(number === this.place));
    this.input.setAttribute("aria-activedescendant", items[this.place].id);
  }

  take(place) {
    const { from, names, written } = this.found;
    const text = written(names[place]);
    typeOver(this.input, text, from, this.input.selectionStart);
    this.close();
  }

  close() {
    this.list.hidden = true;
    this.input.removeAttribute("aria-activedescendant");
  }

  pressed(event) {
    if (this.list.hidden || event.ctrlKey || event.metaKey || event.altKey) return;
    const doing = {
      ArrowDown: () => this.choose(this.place + 1),
      ArrowUp: () => this.choose(this.place - 1),
      Enter: () => this.take(this.place),
      Tab: () => this.take(this.place),
      Escape: () => this.close(),
    }[event.key];
    if (!doing || event.shiftKey) return;
    event.preventDefault();
    event.stopPropagation();
    doing();
  }
}

export function startOffers() {
  for (const id of ["prompt", "negative_prompt"]) new Offers(id);
}
