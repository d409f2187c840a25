// A dialog of cards with pictures, of which one or several are chosen: for models and for LoRAs.

import { $, make } from "./dom.js";
import { t } from "./language.js";
import { notice } from "./notices.js";

let choose = () => {};
let several = false;
let readAgain = null;

/**
 * Open with `cards`: `{name, title, detail, picture, current, disabled}` each; `chosen(name)` hears of the choice.
 *
 * With `many` the dialog stays, and each choice is taken or left: `chosen` returns which. `again` returns the cards read anew.
 * `more` is one further button, its text and what it does.
 */
export function pick(heading, cards, chosen, { many = false, again = null, more = null } = {}) {
  [choose, several, readAgain] = [chosen, many, again];
  $("picker-more").hidden = !more;
  $("picker-more").textContent = more?.[0] ?? "";
  $("picker-more").onclick = () => {
    $("picker").close();
    more[1]().catch((error) => notice(error.message));
  };
  $("picker-heading").textContent = heading;
  $("picker-filter").value = "";
  $("picker-refresh").hidden = !again;
  $("picker-done").hidden = !many;
  put(cards);
  $("picker").showModal();
  ($("picker-list").querySelector("[aria-current=true], [aria-pressed=true]") ?? $("picker-filter")).focus();
}

function put(cards) {
  $("picker-list").replaceChildren(...cards.map(card));
  tell();
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
    type: "button", className: "card", disabled: Boolean(disabled), [several ? "aria-pressed" : "aria-current"]: String(Boolean(current)),
    on: {
      click() {
        if (!several) $("picker").close();
        const taken = choose(name);
        if (several) chosen.setAttribute("aria-pressed", String(taken));
      },
    },
  }, shown, words);
  return make("li", { data: { words: `${name} ${title ?? ""} ${detail ?? ""}`.toLowerCase() } }, chosen);
}

function tell() {
  const all = [...$("picker-list").children];
  const seen = all.filter((item) => !item.hidden).length;
  $("picker-status").textContent = all.length === 0 ? t`There is none.` : seen === all.length ? "" : t`${seen} of ${all.length}`;
}

export function startPicker() {
  for (const id of ["picker-close", "picker-done"]) $(id).addEventListener("click", () => $("picker").close());
  $("picker-refresh").addEventListener("click", async () => put(await readAgain()));
  $("picker-filter").addEventListener("input", () => {
    const words = $("picker-filter").value.toLowerCase().split(/\s+/);
    for (const item of $("picker-list").children) item.hidden = !words.every((word) => item.dataset.words.includes(word));
    tell();
  });
  $("picker").addEventListener("keydown", (event) => {
    const filter = $("picker-filter");
    const first = $("picker-list").querySelector("li:not([hidden]) > :enabled");
    if (event.target !== filter) {
      if (event.key.length === 1 && event.key !== " " && !event.ctrlKey && !event.metaKey) filter.focus();
    } else if (event.key === "ArrowDown") first?.focus();
    else if (event.key === "Enter") {
      event.preventDefault(); // It would open the dialog again, whose button has the focus then.
      first?.click();
    }
  });
}
