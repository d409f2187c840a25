// LoRAs that the next picture is painted with: a list with strengths, beside those that the prompt names.

import { $, button, inMegabytes, make, on, onFilled, tellInput, typeOver } from "./dom.js";
import { t } from "./language.js";
import { isForAnother } from "./models.js";
import { notice } from "./notices.js";
import { pick } from "./picker.js";
import { ask } from "./server.js";

let known = [];
let isRead = false;
let chosen = [];

/** A LoRA by its name, with or without its folder. */
const found = (name) => known.find((one) => one.name === name) ?? known.find((one) => one.name.split("/").pop() === name.split("/").pop());

export const loraNames = () => known.map((one) => one.name);

/** Whether prompts may name a LoRA so; of a list that is still read nobody knows. */
export const isKnownLora = (name) => !isRead || Boolean(found(name));

/** Whether a LoRA is for another kind of model than the one that is chosen. */
export const isMisfit = (name) => isForAnother(found(name) ?? {});

/** What the last LoRA of few steps is drawn with, of those that are chosen and those that a prompt names. */
export const fewStepsOf = (named) => [...chosen.filter(({ weight }) => weight >= 0.5).map(({ name }) => name), ...named].map((name) => found(name)?.few_steps).filter(Boolean).pop() ?? {};

/** Strength that its user prefers, or 1, as in A1111. */
export const weightOf = (name) => found(name)?.card.weight ?? 1;
export const chosenLoras = () => chosen.map(({ name, weight }) => ({ name, weight }));

export async function readLoras() {
  known = (await ask("/api/loras")).sort((one, other) => one.name.localeCompare(other.name, undefined, { numeric: true }));
  isRead = true;
  $("lora-none").hidden = known.length > 0;
}

/** Show what a list that came late says of LoRAs that are named by now. */
export function showLoras() {
  show();
  tellInput($("form"));
}

export function setLoras(loras) {
  chosen = loras.map(({ name, weight }) => ({ name, weight: weight ?? 1 }));
  show();
}

function show() {
  $("lora-badge").textContent = chosen.length || "";
  $("lora-list").replaceChildren(...chosen.map(row));
  if (chosen.length) $("fold-loras").open = true;
}

function row(lora) {
  const number = make("input", { type: "number", min: -4, max: 4, step: 0.05, value: lora.weight, "aria-label": t`Strength of ${lora.name} as a number` });
  const slider = make("input", { type: "range", min: -1, max: 2, step: 0.05, value: lora.weight, "aria-label": t`Strength of ${lora.name}` });
  const follow = (from, to) => () => {
    lora.weight = Number(from.value);
    to.value = from.value;
  };
  slider.addEventListener("input", follow(slider, number));
  number.addEventListener("input", follow(number, slider));
  const thumbnail = found(lora.name)?.thumbnail;
  return make("li", { className: "lora" },
    thumbnail ? make("img", { alt: "", src: thumbnail }) : null,
    make("span", { className: "grow" }, lora.name, isForAnother(found(lora.name) ?? {}) ? make("span", { className: "problem" }, ` ${t`not for this model`}`) : null),
    button("×", () => {
      chosen = chosen.filter((one) => one !== lora);
      show();
      tellInput($("form"));
      $("lora-button").focus();
    }, { "aria-label": t`Remove ${lora.name}`, className: "quiet icon" }),
    slider, number, words(lora));
}

/** The words that a LoRA was trained with, each to be put into the prompt. */
function words(lora) {
  const given = found(lora.name)?.card.trigger_words ?? [];
  if (!given.length) return null;
  const add = (word) => () => {
    const prompt = $("prompt").value.trimEnd();
    typeOver($("prompt"), prompt ? `${prompt}, ${word}` : word);
  };
  return make("span", { className: "triggers" }, ...given.slice(0, 6).map((word) => button(word, add(word), { className: "quiet", title: t`Into the prompt` })));
}

function cardOf(one) {
  const { name, alias, path, family: made, thumbnail, card, size } = one;
  const title = card.title || alias || name;
  const details = [
    title === name ? "" : name, path.replace(/[^/]*$/, ""), card.base_model || made, one.broken ? t`can’t be read` : "", isForAnother(one) ? t`not for this model` : "", inMegabytes(size),
    card.trigger_words.length ? t`words: ${card.trigger_words.join(", ")}` : "", card.description,
  ];
  return { name, title, detail: details.filter(Boolean).join(" · "), picture: thumbnail, current: chosen.some((one) => one.name === name) };
}

async function cards() {
  await readLoras().catch((error) => notice(error.message));
  tellInput($("form"));
  return known.map(cardOf);
}

function open() {
  const toggle = (name) => {
    const there = chosen.some((one) => one.name === name);
    chosen = there ? chosen.filter((one) => one.name !== name) : [...chosen, { name, weight: weightOf(name) }];
    show();
    tellInput($("form"));
    return !there;
  };
  pick(t`LoRAs`, known.map(cardOf), toggle, { many: true, again: cards });
}

export function startLoras() {
  onFilled(() => $("lora-list").replaceChildren(...chosen.map(row)));
  on("lora-button", "click", open);
}
