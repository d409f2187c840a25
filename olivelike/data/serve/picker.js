// A dialog of cards with pictures, one of which is chosen: for models and for LoRAs.

import { $, make } from "./dom.js";

let choose = () => {};

/** Open with `cards`: `{name, title, detail, picture, current, disabled}` each; `chosen(name)` hears of the choice. */
export function pick(heading, cards, chosen) {
  choose = chosen;
  $("picker-heading").textContent = heading;
  $("picker-filter").value = "";
  $("picker-list").replaceChildren(...cards.map(card));
  tell();
  $("picker").showModal();
  ($("picker-list").querySelector("[aria-current=true]") ?? $("picker-filter")).focus();
}

function card({ name, title, detail, picture, current, disabled }) {
  const shown = make("span", { className: "card-picture", "aria-hidden": "true" });
  if (picture) {
    const image = make("img", { alt: "", loading: "lazy", src: picture });
    image.addEventListener("error", () => image.remove());
    shown.append(image);
  }
  const words = make("span", { className: "card-words" }, make("strong", {}, title ?? name), make("span", { className: "hint" }, detail ?? ""));
  const chosen = make("button", {
    type: "button", className: "card", "aria-current": String(Boolean(current)), disabled: Boolean(disabled),
    on: {
      click() {
        $("picker").close();
        choose(name);
      },
    },
  }, shown, words);
  return make("li", { data: { words: `${name} ${title ?? ""} ${detail ?? ""}`.toLowerCase() } }, chosen);
}

function tell() {
  const all = [...$("picker-list").children];
  const seen = all.filter((item) => !item.hidden).length;
  $("picker-status").textContent = all.length === 0 ? "There is none." : seen === all.length ? "" : `${seen} of ${all.length}`;
}

export function startPicker() {
  $("picker-close").addEventListener("click", () => $("picker").close());
  $("picker-filter").addEventListener("input", () => {
    const words = $("picker-filter").value.toLowerCase().split(/\s+/);
    for (const item of $("picker-list").children) item.hidden = !words.every((word) => item.dataset.words.includes(word));
    tell();
  });
}
