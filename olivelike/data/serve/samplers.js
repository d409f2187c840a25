// Sampler and schedule type as two lists, which make the one name that orders and recipes have.

import { $, on, onFilled, option } from "./dom.js";
import { t } from "./language.js";

let known = [];
/** The sampler whose schedule types are listed. */
let last = null;
let own = { sampler: "", schedule: "", class: null };

/** Names of all samplers that the model is drawn with, each with its usual schedule type. */
export const samplers = () => known.map((one) => named(one, "Automatic"));

/** The sampler that is chosen, or the model's own. */
export const sampler = () => $("sampler").value || own.sampler;

/** Schedule types that it is drawn with. */
export const schedules = () => entry(sampler())?.schedules ?? [];

const entry = (name) => known.find((one) => one.name === name);

function named(one, schedule) {
  const kind = schedule === "Automatic" ? one.automatic : schedule;
  return kind === one.schedules[0] ? one.name : `${one.name} ${kind}`;
}

/** Take what a model is drawn with, its own sampler marked; what another model was drawn with, and this one is not, is chosen no more. */
export function takeSamplers(given, changed) {
  known = given?.list ?? [];
  const names = known.map((one) => one.name).filter((name) => `${given.own} `.startsWith(`${name} `));
  const sampler = names.sort((one, other) => other.length - one.length)[0] ?? given?.own ?? "";
  own = { sampler, schedule: (given?.own ?? "").slice(sampler.length).trim(), class: given?.class ?? null };
  const marked = own.sampler ? t`${own.sampler} (default)` : t`Default`;
  $("sampler").replaceChildren(
    ...(entry(own.sampler) ? [] : [option("", marked)]),
    ...known.map(({ name }) => option(name, name === own.sampler ? marked : name)),
  );
  if (changed && !entry(parts($("scheduler").value)[0])) $("scheduler").value = "";
  show();
}

function parts(name) {
  const plain = name.replace(/Scheduler$/, "");
  if (!name) return ["", ""];
  for (const one of known) {
    const found = one.aliases.includes(name) ? one.schedules[0] : one.schedules.find((kind) => named(one, kind) === name);
    if (found) return [one.name, found];
  }
  // A class alone has the model's own settings where that is the model's own.
  return own.class && own.class.replace(/Scheduler$/, "") === plain ? ["", ""] : [name, ""];
}

/** What a recipe has of a name: A1111's sampler and schedule type, none for the plain one; the model's own class for "". */
export function namedSampler(name) {
  const [sampler, schedule] = name ? parts(name) : [own.sampler, own.schedule];
  const one = entry(sampler);
  return { scheduler: name || own.class, sampler: one ? sampler : null, schedule: one && schedule && schedule !== one.schedules[0] ? schedule : null };
}

/** Show the name of an order or recipe that the form has now; one that is in no list is put there. */
function show() {
  const [chosen, schedule] = parts($("scheduler").value);
  const name = chosen || (entry(own.sampler)?.name ?? "");
  if (![...$("sampler").options].some((option) => option.value === name)) $("sampler").append(option(name));
  // Automatic and what it stands for are one name: what was chosen of them stays.
  const stays = [null, name].includes(last) && entry(name) && named(entry(name), $("schedule").value) === $("scheduler").value;
  $("sampler").value = name;
  showSchedules(stays ? $("schedule").value : schedule);
}

/** What the model's own sampler begins with is its own schedule, listed once unless a recipe names it. */
function kindsOf(one, chosen) {
  if (!one) return [""];
  if (one.name !== own.sampler) return ["Automatic", ...one.schedules];
  return ["", ...one.schedules.filter((kind) => kind === chosen || kind !== (own.schedule || one.schedules[0]))];
}

function showSchedules(chosen) {
  last = $("sampler").value;
  const one = entry(last);
  const kinds = kindsOf(one, chosen);
  const words = { Automatic: one && t`Automatic (${one.automatic})`, "": [own.sampler, ""].includes(last) && own.schedule ? own.schedule : t`Default` };
  $("schedule").replaceChildren(...kinds.map((kind) => option(kind, words[kind])));
  $("schedule").disabled = !one;
  $("schedule").value = kinds.includes(chosen) ? chosen : kinds[0];
}

function take() {
  const one = entry($("sampler").value);
  const schedule = $("schedule").value;
  // The model's own is no name: another model has another one.
  $("scheduler").value = one ? schedule && named(one, schedule) : $("sampler").value;
  $("scheduler").dispatchEvent(new Event("change", { bubbles: true }));
}

export function startSamplers() {
  on("sampler", "change", () => {
    showSchedules("Automatic");
    take();
  });
  on("schedule", "change", take);
  on("scheduler", "input", show);
  onFilled(show);
}
