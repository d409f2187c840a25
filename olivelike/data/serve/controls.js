// ControlNet units: pictures that lead, each chosen or drawn by hand, what is made of it, by which network, how strongly and for how long.

import { paintOver } from "./canvas.js";
import { FORM } from "./declared.js";
import { $, newest, offer, on, onFiles, onFilled, option, tellInput } from "./dom.js";
import { get, inputOf, set, whyInvalid } from "./form.js";
import { fromGallery, give, inWords, isGone, letGo, madeOf, recalled } from "./given.js";
import { emptySheet, fitSize, hasPicture } from "./initial.js";
import { t } from "./language.js";
import { announce, problem, shownAt } from "./notices.js";
import { ask } from "./server.js";

const MOST_CONTROLS = FORM.axes.find(({ units }) => units).units;

let nets = [];
let units = [];

const THRESHOLDS = ["a", "b"];

class Unit {
  picture = null;
  /** The steps by which the picture was drawn here, and on what. */
  drawn = null;
  #choosing = newest();

  constructor() {
    let number = 1;
    while ($(`control-${number}-box`)) number += 1;
    this.id = `control-${number}`;
    this.box = $("control-unit").content.firstElementChild.cloneNode(true);
    const grid = this.box.querySelector(".grid");
    const fields = FORM.control.map((one) => inputOf(one, { data: { part: one.name } })[0]);
    // Choices, thresholds, numbers.
    grid.prepend(...fields.filter((one) => one.querySelector("select")));
    grid.append(...fields.slice(grid.children.length - THRESHOLDS.length));
    for (const part of [this.box, ...this.box.querySelectorAll("[data-part]")]) part.id = `${this.id}-${part.dataset.part}`;
    $("control-units").append(this.box);
    this.#listen();
  }

  part(name) {
    return $(`${this.id}-${name}`);
  }

  #listen() {
    const at = (part, type, heard) => on(`${this.id}-${part}`, type, heard);
    onFiles(`${this.id}-file`, (files) => takeControls(files, this));
    this.part("preprocessor").replaceChildren(...[{ name: "none", label: t`None` }, ...FORM.preprocessors].map(({ name, label }) => option(name, label)));
    at("preprocessor", "input", () => {
      for (const part of THRESHOLDS) this.part(part).value = "";
    });
    at("box", "input", () => this.show());
    at("picture", "error", () => this.#broken());
    at("picture", "load", () => problem(this.part("problem"), ""));
    at("draw", "click", () => this.#draw().catch(shownAt(`${this.id}-problem`)));
    at("remove", "click", () => removeUnit(this));
  }

  async #broken() {
    const { picture } = this;
    const gone = await isGone(picture);
    if (picture !== this.picture) return;
    if (gone) this.put(null);
    if (gone) problem(this.part("problem"), t`The server no longer has a picture that is used here; choose it again.`);
    else if (this.#chosen()) problem(this.part("problem"), t`The server can’t make this of the picture; choose another preprocessor.`);
  }

  #chosen() {
    return FORM.preprocessors.find(({ name }) => name === this.part("preprocessor").value);
  }

  /** Where what the network sees is, made with the thresholds that are asked for. */
  #made() {
    const [threshold_a, threshold_b] = THRESHOLDS.map((part) => this.part(part).value);
    return madeOf(this.picture.id, { preprocessor: this.#chosen().name, threshold_a, threshold_b });
  }

  /** Whether an order has it. */
  get leads() {
    return this.picture !== null && this.part("enabled").checked;
  }

  /** What an order has of it: with thresholds of its own the picture is made now, as orders have the usual ones. */
  async fields() {
    const wrong = [...this.box.querySelectorAll(".grid input")].find((input) => !input.disabled && !input.validity.valid && !input.validity.stepMismatch);
    if (wrong) {
      this.box.open = $("fold-control").open = true;
      wrong.setAttribute("aria-invalid", "true");
      wrong.addEventListener("input", () => wrong.removeAttribute("aria-invalid"), { once: true });
      wrong.focus();
      throw new Error(`${wrong.labels[0].textContent.trim()}: ${whyInvalid(wrong)}`);
    }
    const own = this.#chosen()?.thresholds?.some(([, value], place) => Number(this.part(THRESHOLDS[place]).value) !== value);
    const found = { image: own ? (await ask(this.#made(), { method: "POST" })).id : this.picture.id };
    for (const { name, type } of FORM.control) found[name] = type === "number" ? Number(get(this.part(name))) : get(this.part(name));
    return own ? { ...found, preprocessor: "none" } : found;
  }

  /** What is kept of it, for a reload and to take back what was done. */
  state() {
    const inputs = [...this.box.querySelectorAll("select, input:not([type=file])")];
    return { ...Object.fromEntries(inputs.map((input) => [input.dataset.part, get(input)])), picture: inWords(this.picture) };
  }

  /** Be as `state` says; a picture that it is silent of stays. */
  fill({ picture, ...values }) {
    // Until the model's networks are known, each may be one of them.
    const fits = (name, value) => name !== "net" || !nets.length || nets.includes(value);
    for (const [name, value] of Object.entries(values)) if (this.part(name) && fits(name, value)) set(this.part(name), value);
    if (picture !== undefined && picture?.id !== this.picture?.id) this.put(recalled(picture));
    else this.show();
  }

  /** Let the picture that comes lead. */
  async take(coming, drawn = null) {
    problem(this.part("problem"), "");
    const isNewest = this.#choosing();
    try {
      const picture = await coming;
      if (!isNewest() || !units.includes(this)) return letGo(picture);
      this.put(picture, drawn);
      if (!hasPicture()) fitSize(picture.width, picture.height);
      announce(t`${picture.name}, ${picture.width} by ${picture.height} pixels, leads.`);
      tellInput($("form"));
    } catch (error) {
      problem(this.part("problem"), error);
    }
  }

  /** Have this picture in place of the last one, or none. */
  put(picture, drawn = null) {
    letGo(this.picture);
    if (this.drawn?.sheet !== drawn?.sheet) letGo(this.drawn?.sheet);
    [this.picture, this.drawn] = [picture, drawn];
    problem(this.part("problem"), "");
    this.show();
  }

  /** Draw lines in white on black, as networks of scribbles want them; what was drawn last goes on. */
  async #draw() {
    const sheet = this.drawn?.sheet ?? (await emptySheet("#000"));
    const painted = await paintOver(sheet, { steps: this.drawn?.steps, tool: "colour", masks: false, colour: "#ffffff" });
    if (!painted?.picture) return this.drawn?.sheet !== sheet && letGo(sheet);
    this.part("preprocessor").value = "none";
    await this.take(give(painted.picture.blob, t`the drawing`), { sheet, steps: painted.steps });
  }

  /** What the network sees: the picture, or what the preprocessor makes of it. */
  show() {
    for (const [place, part] of THRESHOLDS.entries()) {
      const [label = "", value = ""] = this.#chosen()?.thresholds?.[place] ?? [];
      const input = this.part(part);
      input.parentElement.hidden = input.disabled = !label;
      input.previousElementSibling.textContent = label;
      if (!label || input.value === "") input.value = value;
    }
    const image = this.part("picture");
    const shown = this.picture && (this.#chosen() ? this.#made() : this.picture.url);
    image.hidden = !this.picture;
    this.part("note").hidden = Boolean(this.picture);
    if (shown && image.getAttribute("src") !== shown) image.src = shown;
    else if (!shown) image.removeAttribute("src");
    this.part("enable").hidden = !this.picture;
    this.part("number").textContent = units.indexOf(this) + 1;
    this.part("badge").textContent = this.picture ? `${this.part("net").value} · ${this.leads ? this.part("strength").value : t`off`}` : "";
    showAll();
  }
}

function showAll() {
  const leading = nets.length ? units.filter((unit) => unit.leads).length : 0;
  $("control-badge").textContent = leading > 1 ? leading : leading ? t`on` : "";
  $("control-add").hidden = nets.length === 0 || units.length >= MOST_CONTROLS;
  for (const unit of units) unit.part("remove").disabled = units.length === 1 && !unit.picture;
}

/** Add a unit, of the first network that none has yet. */
function addUnit() {
  const taken = new Set(units.map((unit) => unit.part("net").value));
  const unit = new Unit();
  units.push(unit);
  offer(unit.part("net"), nets.map((name) => option(name)));
  unit.part("net").value = nets.find((name) => !taken.has(name)) ?? nets[0] ?? "";
  unit.show();
  return unit;
}

function drop(unit) {
  unit.put(null);
  units = units.filter((one) => one !== unit);
  unit.box.remove();
}

/** Take a unit away; the last one stays, without its picture. */
function removeUnit(unit) {
  const place = units.indexOf(unit);
  if (units.length > 1) drop(unit);
  else unit.put(null);
  for (const one of units) one.show();
  const next = units[place] ?? units.at(-1);
  next.box.open = true;
  next.part("file").focus();
  tellInput($("form"));
}

/** The model's network of this name, or the one that a name of A1111's, with what it was made for and a hash, has in it. */
export const netLike = (name) => nets.find((one) => one === name) ?? nets.find((one) => name && name.toLowerCase().includes(one.toLowerCase())) ?? null;

/** Show what a model has; without any there is nothing to choose. */
export function takeControlNets(names = []) {
  nets = names;
  $("control-none").hidden = nets.length > 0;
  for (const part of [$("control-units"), ...$("fold-control").querySelectorAll(":scope > .grid")]) part.hidden = nets.length === 0;
  for (const unit of units) {
    offer(unit.part("net"), nets.map((name) => option(name)));
    unit.show();
  }
}

/** Let files lead: the first by `unit`, or one that has no picture, the others by further ones. */
export async function takeControls(files, unit = units.find((one) => !one.picture), how = (file) => give(file, file.name || t`the pasted picture`)) {
  for (const [place, file] of [...files].entries()) {
    const free = place || !unit ? units.find((one) => !one.picture) : unit;
    if (!free && units.length >= MOST_CONTROLS) return problem($("control-problem"), t`At most ${MOST_CONTROLS} pictures are taken; ${file.name} and what follows is left out.`);
    await (free ?? addUnit()).take(how(file));
  }
}

/** Whether a picture may lead, and let one of the gallery do so. */
export const mayLead = () => nets.length > 0;
export async function sendToControl(picture) {
  location.hash = "#paint";
  $("fold-control").open = true;
  await takeControls([picture], undefined, () => fromGallery(picture, t`this picture`));
  $("fold-control").scrollIntoView({ block: "nearest" });
}

/** The unit that an element is in. */
export const unitAt = (element) => units.find((unit) => unit.box.contains(element));

/** What the order has of this. */
export async function controlFields() {
  const leading = nets.length ? units.filter((unit) => unit.leads) : [];
  if (!leading.length) return {};
  const [width, height] = ["width", "height"].map((id) => Number($(id).value));
  const isOther = ({ picture }) => Math.abs((picture.width / picture.height) * (height / width) - 1) > 0.01;
  // A picture of another shape is cropped, as in A1111, unless the initial picture would be, too.
  const crops = !hasPicture() && leading.some(isOther);
  return { controls: await Promise.all(leading.map((unit) => unit.fields())), ...(crops ? { fit: true } : {}) };
}

/** Which of the pictures that lead the unit with this number has, from 1; 0 where it does not lead. */
export const placeOfUnit = (number) => units.filter((unit) => unit.leads).indexOf(units[number - 1]) + 1;
export const countUnits = () => units.length;

export const controlStates = () => units.map((unit) => unit.state());

/** Have as many units as were kept, with what they held; without any, a new one. */
export function fillControls(states) {
  for (const unit of units.slice(states.length)) drop(unit);
  for (const [place, state] of states.entries()) (units[place] ?? addUnit()).fill(state);
  // Of several, those that are complete say on their heads what they are.
  for (const unit of units) unit.box.open = units.length === 1 || !unit.picture;
  if (!states.length) addUnit();
}

/** Let go of pictures by their ids. */
export function forgetControls(isGone) {
  for (const unit of units) if (unit.picture && isGone(unit.picture.id)) unit.put(null);
}

export function startControls() {
  addUnit();
  onFilled(() => units.forEach((unit) => unit.show()));
  on("control-add", "click", () => {
    for (const unit of units) unit.box.open = false;
    addUnit().part("file").focus();
    tellInput($("form"));
  });
}
