// A dialog of cards with pictures, of which one or several are chosen: for models and for LoRAs.

import { $, make, on } from "./dom.js";
import { t } from "./language.js";
import { notice } from "./notices.js";

let choose = () => {};
let several = false;
let readAgain = null;
let further = () => null;

/**
 * Open with `cards`: `{name, title, detail, picture, current, disabled}` each; `chosen(name)` hears of the choice.
 *
 * With `many` the dialog stays, and each choice is taken or left: `chosen` returns which. `again` returns the cards read anew,
 * which is done as it opens. `more` returns one further button, its text and what it does.
 */
export function pick(heading, cards, chosen, { many = false, again, more = () => null } = {}) {
  [choose, several, readAgain, further] = [chosen, many, again, more];
  $("picker-heading").textContent = heading;
  $("picker-filter").value = "";
  $("picker-done").hidden = !many;
  put(cards);
  $("picker").showModal();
  ($("picker-list").querySelector("[aria-current=true], [aria-pressed=true]") ?? $("picker-filter")).focus();
  refresh();
}

/** Show the cards as they are now, if the dialog still is what it was. */
async function refresh() {
  const asked = readAgain;
  const cards = await asked();
  if (readAgain === asked && $("picker").open) put(cards);
}

function put(cards) {
  const focused = document.activeElement.closest("#picker-list li")?.dataset.name;
  $("picker-list").replaceChildren(...cards.map(card));
  const more = further();
  $("picker-more").hidden = !more;
  $("picker-more").textContent = more?.[0] ?? "";
  filter();
  if (focused) $("picker-list").querySelector(`[data-name="${CSS.escape(focused)}"] > button`)?.focus();
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
  return make("li", { data: { name, words: `${name} ${title ?? ""} ${detail ?? ""}`.toLowerCase() } }, chosen);
}

function filter() {
  const words = $("picker-filter").value.toLowerCase().split(/\s+/);
  for (const item of $("picker-list").children) item.hidden = !words.every((word) => item.dataset.words.includes(word));
  tell();
}

function tell() {
  const all = [...$("picker-list").children];
  const seen = all.filter((item) => !item.hidden).length;
  $("picker-status").textContent = all.length === 0 ? t`There is none.` : seen === all.length ? "" : t`${seen} of ${all.length}`;
}

export function startPicker() {
  for (const id of ["picker-close", "picker-done"]) on(id, "click", () => $("picker").close());
  on("picker-refresh", "click", refresh);
  on("picker-more", "click", () => {
    $("picker").close();
    further()?.[1]().catch((error) => notice(error.message));
  });
  on("picker-filter", "input", filter);
  on("picker", "keydown", (event) => {
    const words = $("picker-filter");
    const first = $("picker-list").querySelector("li:not([hidden]) > :enabled");
    if (event.target !== words) {
      if (event.key.length === 1 && event.key !== " " && !event.ctrlKey && !event.metaKey) words.focus();
    } else if (event.key === "ArrowDown") first?.focus();
    else if (event.key === "Enter") {
      event.preventDefault(); // It would open the dialog again, whose button has the focus then.
      first?.click();
    }
  });
}
