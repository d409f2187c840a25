// LoRAs that the next picture is painted with: a list with strengths, beside those that the prompt names.

import { $, button, make } from "./dom.js";
import { family } from "./models.js";
import { notice } from "./notices.js";
import { pick } from "./picker.js";
import { ask } from "./server.js";

let known = [];
let chosen = [];

export const loraNames = () => known.map((one) => one.name);
export const chosenLoras = () => chosen.map(({ name, weight }) => ({ name, weight }));

export async function readLoras() {
  const found = await ask("/api/loras");
  known = found;
  $("fold-loras").hidden = known.length === 0 && chosen.length === 0;
}

export function setLoras(loras) {
  chosen = loras.map(({ name, weight }) => ({ name, weight: weight ?? 1 }));
  show();
}

function changed() {
  $("form").dispatchEvent(new Event("input", { bubbles: true }));
}

function show() {
  $("lora-badge").textContent = chosen.length || "";
  $("lora-list").replaceChildren(...chosen.map(row));
  if (chosen.length) {
    $("fold-loras").open = true;
    $("fold-loras").hidden = false;
  }
}

function row(lora) {
  const number = make("input", { type: "number", min: -4, max: 4, step: 0.05, value: lora.weight, "aria-label": `Strength of ${lora.name} as a number` });
  const slider = make("input", { type: "range", min: -1, max: 2, step: 0.05, value: lora.weight, "aria-label": `Strength of ${lora.name}` });
  const follow = (from, to) => () => {
    lora.weight = Number(from.value);
    to.value = from.value;
  };
  slider.addEventListener("input", follow(slider, number));
  number.addEventListener("input", follow(number, slider));
  const thumbnail = known.find((one) => one.name === lora.name)?.thumbnail;
  return make("li", { className: "lora" },
    thumbnail ? make("img", { alt: "", src: thumbnail }) : null,
    make("span", { className: "grow" }, lora.name),
    button("×", () => {
      chosen = chosen.filter((one) => one !== lora);
      show();
      changed();
      $("lora-button").focus();
    }, { "aria-label": `Remove ${lora.name}`, className: "quiet icon" }),
    slider, number);
}

async function open() {
  await readLoras().catch((error) => notice(error.message));
  const cards = known.map((one) => ({
    name: one.name,
    title: one.alias && one.alias !== one.name ? one.alias : one.name,
    detail: [one.family, one.family && family() && one.family !== family() ? "not for this model" : "", one.alias !== one.name ? one.name : ""].filter(Boolean).join(" · "),
    picture: one.thumbnail,
    current: chosen.some((other) => other.name === one.name),
  }));
  pick("LoRAs", cards, (name) => {
    if (!chosen.some((one) => one.name === name)) chosen.push({ name, weight: 0.8 });
    show();
    changed();
  });
}

export function startLoras() {
  $("lora-button").addEventListener("click", open);
}
